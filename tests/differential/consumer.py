"""The consumer protocol's own bytes: subscriptions and assignments (ConsumerProtocolSubscription v0 and v1)."""

from __future__ import annotations

import struct


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def subscription(topics: list[str], version: int = 0) -> bytes:
    owned = struct.pack(">i", 0) if version >= 1 else b""
    return struct.pack(">hi", version, len(topics)) + b"".join(map(_string, topics)) + struct.pack(">i", -1) + owned


def assignment(topics: dict[str, list[int]]) -> bytes:
    rows = b"".join(_string(t) + struct.pack(f">i{len(p)}i", len(p), *p) for t, p in topics.items())
    return struct.pack(">hi", 0, len(topics)) + rows + struct.pack(">i", -1)
