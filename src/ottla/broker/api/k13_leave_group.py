"""LeaveGroup, key 13, versions 0 to 5: members leave, or an administrator sends them away.

What changed per version: 1 throttle_time_ms, 3 many members at once, static ones by instance id alone, 4 flexible,
5 a reason.

What is skipped: nothing.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ottla.broker.api.group_calls import ask_group
from ottla.broker.requests import Request
from ottla.broker.security.authorizer import Operation

if TYPE_CHECKING:
    from ottla.broker.node import Node


def handle(node: Node, request: Request) -> Any:
    return node.slices.each(request, partial(_leave, node), "members", "members")


def _leave(node: Node, request: Request) -> Any:
    return ask_group(node, request, request.body.group_id, Operation.READ)
