"""Holds the cluster's metadata as one immutable value: the metadata image.

It contains the topics with their partitions, the dynamic configurations, client quotas, ACLs, SCRAM
credentials, the nodes and the controller.
It also contains feature levels, the starts of nodes, and the next producer id. All of it comes from the rows of the
metadata store: `KINDS` lists every kind of row. Which partitions are on a node's disk, and their contents, is state of
the node and not in the image.

An image changes only through `changed`, a pure function of the old image and a `MetadataDelta`: the rows that any node
wrote or removed. Deltas arrive in the order of the store's generations. However many commits each delta covers, the
images at one generation are equal. Tables that a delta does not touch are shared with the old image, and a commit of
thousands of topics copies each table once.

Sources: Kafka's MetadataImage.java and MetadataDelta.java; the generation is its metadata offset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

from ottla.metadata.acls import ACLS
from ottla.metadata.configs import BROKER_CONFIGS, GROUP_CONFIGS
from ottla.metadata.controllers import CONTROLLER, ControllerRecord
from ottla.metadata.credentials import CREDENTIALS
from ottla.metadata.features import FEATURES, UNSET
from ottla.metadata.history import HISTORY
from ottla.metadata.nodes import NODES, NodeRecord
from ottla.metadata.producer_ids import PRODUCER_IDS
from ottla.metadata.quotas import QUOTAS
from ottla.metadata.row_kinds import Registry, Row, RowKind, Rows
from ottla.metadata.store import MetadataStore, Versioned
from ottla.metadata.topics import TOPICS, PartitionRecord, TopicImage

KINDS: Final = Registry(
    TOPICS, BROKER_CONFIGS, GROUP_CONFIGS, QUOTAS, ACLS, CREDENTIALS, NODES, CONTROLLER, PRODUCER_IDS, FEATURES, HISTORY
)
"""The kinds of rows in an image. A new kind is declared in a file of its own and listed here."""

_Part = TypeVar("_Part")


class MetadataDelta(NamedTuple):
    """The rows that commits up to `generation` have written, by key; None where they removed one."""

    generation: int
    rows: Rows

    def names(self, kind: RowKind[Any]) -> list[str]:
        """The names of the rows of this kind; [''] if the only row of a kind is among them."""
        if kind.is_single:
            return [""] if kind.prefix in self.rows else []
        prefix = kind.prefix
        return [key.removeprefix(prefix) for key in self.rows if key.startswith(prefix)]


def _nothing() -> Mapping[RowKind[Any], Any]:
    return {kind: kind.empty for kind in KINDS}


@dataclass(frozen=True, slots=True)
class MetadataImage:
    """All metadata committed up to `generation`; for example, `image[QUOTAS]` is one kind of row. It never changes, so
    any part of it may be kept and read later."""

    generation: int = 0
    parts: Mapping[RowKind[Any], Any] = field(default_factory=_nothing)
    """The value for each kind in `KINDS`."""

    @staticmethod
    def of(generation: int, parts: Mapping[RowKind[Any], Any]) -> MetadataImage:
        """An image that holds these parts, and nothing of all other kinds."""
        return MetadataImage(generation, {**_nothing(), **parts})

    def __getitem__(self, kind: RowKind[_Part]) -> _Part:
        return self.parts[kind]

    # ---- the kinds that most readers want --------------------------------------------------------------------------

    @property
    def topics(self) -> Mapping[str, TopicImage]:
        return self.parts[TOPICS].by_name

    @property
    def topics_by_id(self) -> Mapping[bytes, TopicImage]:
        return self.parts[TOPICS].by_id

    @property
    def partition_count(self) -> int:
        """The number of partitions of all topics."""
        return self.parts[TOPICS].partition_count

    @property
    def nodes(self) -> Mapping[str, NodeRecord]:
        """The nodes of the cluster that have registered, by id as text."""
        return self.parts[NODES]

    @property
    def controller(self) -> ControllerRecord | None:
        """The newest claim; None if no node has made one."""
        return self.parts[CONTROLLER]

    def level_of(self, feature: str) -> int:
        """The level of one of the features in `features.HIGHEST`."""
        return self.levels.get(feature, 0)

    @property
    def levels(self) -> Mapping[str, int]:
        """The levels of all features, by name."""
        features = self[FEATURES]
        return UNSET if features is None else {**UNSET, **features.levels}

    def name_of(self, topic: str | bytes) -> str | None:
        """The name of a topic that a request identifies by name or id; None for an unknown id."""
        if isinstance(topic, str):
            return topic
        found = self.topics_by_id.get(topic)
        return None if found is None else found.name

    def partition(self, topic: str, index: int) -> PartitionRecord | None:
        found = self.topics.get(topic)
        return found.partitions[index] if found is not None and 0 <= index < len(found.partitions) else None


def changed(image: MetadataImage, delta: MetadataDelta) -> MetadataImage:
    """The image after this delta."""
    assert delta.generation >= image.generation, f"{image.generation} is newer than {delta.generation}"
    of_kinds: dict[RowKind[Any], dict[str, Row | None]] = {}
    for key, row in delta.rows.items():
        kind = KINDS.kind_of(key)
        if kind is not None:
            of_kinds.setdefault(kind, {})[key[len(kind.prefix) :]] = row
    parts = image.parts
    if of_kinds:
        parts = {**parts, **{kind: kind.apply(parts[kind], rows) for kind, rows in of_kinds.items()}}
    return MetadataImage(delta.generation, parts)


# ---- from the rows of the store ------------------------------------------------------------------------------------


def read_image(store: MetadataStore) -> MetadataImage:
    """Everything in the store now. Raises StoreError."""
    return changed(MetadataImage(), _difference(store, MetadataImage()))


def delta_since(store: MetadataStore, image: MetadataImage) -> MetadataDelta:
    """The changes in the store since this image. Raises StoreError."""
    return _followed(store, image, image.generation, {}) or _difference(store, image)


def _difference(store: MetadataStore, image: MetadataImage) -> MetadataDelta:
    """Every row of the store, and which of the image's rows were removed."""
    gone = [kind.prefix + name for kind in KINDS for name in kind.names(image.parts[kind])]
    while True:
        generation = store.generation
        rows: dict[str, Row | None] = dict.fromkeys(gone)
        for kind in KINDS:
            rows |= {key: _row(store, image, kind, key, row) for key, row in store.list(kind.prefix) if kind.is_of(key)}
        if (delta := _followed(store, image, generation, rows)) is not None:
            return delta


def _followed(
    store: MetadataStore, image: MetadataImage, generation: int, rows: dict[str, Row | None]
) -> MetadataDelta | None:
    """Combine these rows, of that generation or newer, with later changes into a consistent snapshot; None if that
    generation is too long ago. `image`: what is known already."""
    while True:
        changes = store.changes_since(generation)
        if changes is None:
            return None
        kinds = {key: kind for key in changes.keys if (kind := KINDS.kind_of(key)) is not None}
        found = store.get_many([*kinds])
        rows |= {key: _row(store, image, kind, key, row) for (key, kind), row in zip(kinds.items(), found, strict=True)}
        generation = changes.generation
        if store.generation == generation:  # no row was written meanwhile
            return MetadataDelta(generation, rows)


def _row(store: MetadataStore, image: MetadataImage, kind: RowKind[Any], key: str, row: Versioned | None) -> Row | None:
    if row is None:
        return None
    return Row(kind.read(store, key, row.value, image.parts[kind]), row.version)
