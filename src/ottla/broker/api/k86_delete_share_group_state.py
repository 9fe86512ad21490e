"""DeleteShareGroupState, key 86, version 0: between brokers, one of the share coordinator's APIs.

What it does: forgets share partitions.
What changed per version: nothing, there is one. What is skipped: nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.share_state_calls import ask
from ottla.broker.requests import Request

if TYPE_CHECKING:
    from ottla.broker.node import Node


def handle(node: Node, request: Request) -> Any:
    return ask(node, request)
