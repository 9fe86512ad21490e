"""JoinGroup, key 11, versions 0 to 9: become a member of a group and wait for its next generation.

What it does: parks until the join phase ends (`groups.classic`, `groups.rebalance`).

What changed per version: 1 rebalance_timeout_ms, 4 a new member is first told its id (MEMBER_ID_REQUIRED), 5 static
members, 6 flexible, 7 protocol_type in the answer, 8 a reason, 9 skip_assignment for a static leader that came back.

What is skipped: nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.group_calls import ask_group
from ottla.broker.requests import Request
from ottla.broker.security.authorizer import Operation

if TYPE_CHECKING:
    from ottla.broker.node import Node


def handle(node: Node, request: Request) -> Any:
    return ask_group(node, request, request.body.group_id, Operation.READ)
