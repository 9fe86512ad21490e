"""Keeps topics encoded as Metadata answers have them: encoding 10,000 topics takes far longer than sending them.

A kept topic is valid while its image is the same object and clients reach the same nodes. An image never changes, and
a delta replaces only the images of topics that it touches.

Invariants: topics are kept for at most `KEPT_MAX` pairs of a version and a listener, and never more topics than there
are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ottla.metadata.nodes import NodeRecord
from ottla.metadata.topics import TopicImage
from ottla.protocol.wire import Encoded

KEPT_MAX: Final = 3
"""Clients of one kind ask with the same version on the same listener."""
Reached = Mapping[int, NodeRecord]
Kept = dict[str, tuple[TopicImage, Encoded]]
"""The encoded topics by name, each with the image that it describes."""


class EncodedTopics:
    """The topics of one node, as it has described them to clients."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: dict[tuple[int, str], tuple[Reached, Kept]] = {}
        """By version and listener, with the nodes that were reached; the pair that was used last is the last one."""

    def of(self, version: int, listener: str, reached: Reached, topics: int) -> Kept:
        """Return the encoded topics for answers of this version on this listener, to be read and extended.

        `reached`: the nodes that its clients reach now, as `Members.reached` returns them; `topics`: how many exist.
        """
        key = version, listener
        known = self._kept.pop(key, None)
        if known is None or known[0] is not reached or len(known[1]) > topics:
            known = reached, Kept()
        self._kept[key] = known
        if len(self._kept) > KEPT_MAX:
            del self._kept[next(iter(self._kept))]
        return known[1]
