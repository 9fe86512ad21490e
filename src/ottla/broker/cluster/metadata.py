"""The metadata that this node knows, and its way to change it.

Knows the newest image and the store behind it. A change is a batch of rows, committed all or none; once it is, the node
is told the delta like one of anybody else's, and everything follows from that. Does not know what follows.

Invariant: the image is at the generation of the last delta that the node was told of, and deltas come in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ottla.machine import Millis
from ottla.metadata.image import (
    MetadataDelta,
    MetadataImage,
    Record,
    Row,
    changed,
    delta_since,
    encoded,
    read_image,
)
from ottla.metadata.store import Delete, Guard, MetadataStore, Put, Write


class RowChange(NamedTuple):
    """A row to be written, or to be removed where `record` is None; `expected` as in `store.Put`."""

    key: str
    record: Record | None
    expected: int | None = None


class Metadata:
    """`tell` is given every delta of this node's own commits, before `commit` returns."""

    def __init__(self, store: MetadataStore, tell: Callable[[Millis, MetadataDelta], None]) -> None:
        self._store = store
        self._tell = tell
        self.image = MetadataImage()

    def load(self) -> None:
        """At start: read all that is there. Raises StoreFailed."""
        self.image = read_image(self._store)

    def move(self, delta: MetadataDelta) -> MetadataImage:
        """The image moves on by this delta; returns what it was before."""
        before, self.image = self.image, changed(self.image, delta)
        return before

    def commit(
        self, now: Millis, rows: Sequence[RowChange], also: Sequence[Write] = (), guards: Sequence[Guard] = ()
    ) -> None:
        """Write these rows in one batch; `also`: rows that no image has. Raises StoreFailed, Conflict."""
        writes: list[Write] = [
            Delete(key, expected) if record is None else Put(key, encoded(record), expected)
            for key, record, expected in rows
        ]
        generation = self._store.commit([*writes, *also], guards)
        if generation == self.image.generation + 1:
            written = {row.key: None if row.record is None else Row(row.record, generation) for row in rows}
            delta = MetadataDelta(generation, written)
        else:
            delta = delta_since(self._store, self.image)
        self._tell(now, delta)
