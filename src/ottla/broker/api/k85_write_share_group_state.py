"""WriteShareGroupState, key 85, versions 0 to 1: between brokers, one of the share coordinator's APIs.

What it does: writes what changed in a share partition.
What changed per version: 1 delivery_complete_count (KIP-1226). What is skipped: nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.share_state_calls import ask
from ottla.broker.requests import Request

if TYPE_CHECKING:
    from ottla.broker.node import Node


def handle(node: Node, request: Request) -> Any:
    return ask(node, request)
