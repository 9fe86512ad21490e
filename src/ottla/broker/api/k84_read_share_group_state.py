"""ReadShareGroupState, key 84, version 0: between brokers, one of the share coordinator's APIs.

What it does: reads what a share partition must know when its leader loads it.
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
