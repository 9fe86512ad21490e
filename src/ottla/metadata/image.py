"""Holds what the cluster agrees on as one immutable value: the metadata image.

Knows the topics with their partitions, the dynamic configurations, client quotas, the nodes and the controller, the
levels of features, the starts of nodes and how far producer ids were given out, as the rows of the metadata store say
them. Does not know what lies on a node's disk: which of these partitions a node has, and what is in them, is its own.

An image moves only by `changed`, a pure function of the old image and a `MetadataDelta`: rows that were written or
removed, whoever did it. Deltas come in the order of the store's generations; however many commits each of them covers,
the images at one generation are equal. What a delta does not name is shared with the old image, so that a commit of
thousands of topics copies each table once.

Sources: Kafka's MetadataImage.java and MetadataDelta.java; the generation is its metadata offset.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, TypeAlias, TypeVar

from ottla.metadata.controllers import CONTROLLER_KEY, ControllerRecord
from ottla.metadata.features import FEATURES_KEY, UNSET, FeaturesRecord
from ottla.metadata.history import HISTORY_KEY, HistoryRecord
from ottla.metadata.nodes import PREFIX as NODE_PREFIX
from ottla.metadata.nodes import NodeRecord
from ottla.metadata.producer_ids import KEY as PRODUCER_IDS_KEY
from ottla.metadata.producer_ids import ProducerIdsRecord
from ottla.metadata.quotas import PREFIX as QUOTA_PREFIX
from ottla.metadata.store import MetadataStore, Versioned, decoded
from ottla.metadata.topics import PREFIX as TOPIC_PREFIX
from ottla.metadata.topics import PartitionRecord, TopicRecord, texts

BROKER_CONFIG_PREFIX: Final = "config/broker/"
GROUP_CONFIG_PREFIX: Final = "config/group/"
_PREFIXES: Final = (
    TOPIC_PREFIX,
    BROKER_CONFIG_PREFIX,
    GROUP_CONFIG_PREFIX,
    QUOTA_PREFIX,
    NODE_PREFIX,
    CONTROLLER_KEY,
    PRODUCER_IDS_KEY,
    FEATURES_KEY,
    HISTORY_KEY,
)

Configs: TypeAlias = Mapping[str, str]
"""Properties as text."""
KeptRecord: TypeAlias = TopicRecord | NodeRecord | ControllerRecord | ProducerIdsRecord | FeaturesRecord | HistoryRecord
"""What knows by itself how it is written."""
Record: TypeAlias = KeptRecord | Configs

_Only = TypeVar("_Only", ControllerRecord, ProducerIdsRecord, FeaturesRecord, HistoryRecord)
_KINDS: Final[tuple[tuple[str, type[KeptRecord]], ...]] = (
    (TOPIC_PREFIX, TopicRecord),
    (NODE_PREFIX, NodeRecord),
    (CONTROLLER_KEY, ControllerRecord),
    (PRODUCER_IDS_KEY, ProducerIdsRecord),
    (FEATURES_KEY, FeaturesRecord),
    (HISTORY_KEY, HistoryRecord),
)
"""What the rows under a key or a prefix are; all others are configs, or limits by name."""


class Row(NamedTuple):
    """What a key of the store says, and the version that a compare-and-set names."""

    record: Record
    version: int


@dataclass(frozen=True, slots=True)
class MetadataDelta:
    """The rows that commits up to `generation` have written, by key; None where they removed one."""

    generation: int
    rows: Mapping[str, Row | None]

    def names(self, prefix: str) -> list[str]:
        """Of what kind of thing it speaks, by name."""
        return [key.removeprefix(prefix) for key in self.rows if key.startswith(prefix)]


@dataclass(frozen=True, slots=True)
class TopicImage:
    """One topic. `version` is that of its row."""

    name: str
    record: TopicRecord
    version: int

    @property
    def id(self) -> bytes:
        return self.record.topic_id

    @property
    def configs(self) -> Configs:
        """Its own configs, which override the broker's."""
        return self.record.configs

    @property
    def partitions(self) -> tuple[PartitionRecord, ...]:
        return self.record.partitions


@dataclass(frozen=True, slots=True)
class MetadataImage:
    """All that was agreed on up to `generation`. Nobody changes it; whoever holds one may go on reading it."""

    generation: int = 0
    topics: Mapping[str, TopicImage] = field(default_factory=dict[str, TopicImage])
    topics_by_id: Mapping[bytes, TopicImage] = field(default_factory=dict[bytes, TopicImage])
    partition_count: int = 0
    broker_configs: Mapping[str, Configs] = field(default_factory=dict[str, Configs])
    """By the id of a broker as text; '' for all brokers."""
    group_configs: Mapping[str, Configs] = field(default_factory=dict[str, Configs])
    client_quotas: Mapping[str, Configs] = field(default_factory=dict[str, Configs])
    """Limits by name, of each entity: see `metadata.quotas`."""
    nodes: Mapping[str, NodeRecord] = field(default_factory=dict[str, NodeRecord])
    """The nodes of the cluster that have said where they are, by id as text."""
    controller: ControllerRecord | None = None
    """The newest claim; None where no node has ever made one."""
    producer_ids: ProducerIdsRecord | None = None
    """None where nobody has claimed any yet."""
    features: FeaturesRecord | None = None
    """None where no level was ever set."""
    history: HistoryRecord | None = None
    """The starts of nodes; None where no node of a cluster has started yet."""

    def level_of(self, feature: str) -> int:
        """The level of one of the features in `features.HIGHEST`."""
        return self.levels.get(feature, 0)

    @property
    def levels(self) -> Mapping[str, int]:
        """The levels of all features, by name."""
        return UNSET if self.features is None else {**UNSET, **self.features.levels}

    def name_of(self, topic: str | bytes) -> str | None:
        """The name of a topic that a request names or whose id it gives; None for an id that nobody has."""
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
    topics, topics_by_id, count = image.topics, image.topics_by_id, image.partition_count
    of_topics = _of(delta, TOPIC_PREFIX)
    if of_topics:
        topics, topics_by_id = dict(topics), dict(topics_by_id)
        # All that goes goes first: a topic of the same name may come with it.
        for name in of_topics:
            old = topics.get(name)
            if old is not None:
                del topics_by_id[old.id]
                count -= len(old.partitions)
        for name, row in of_topics.items():
            if row is None:
                topics.pop(name, None)
            else:
                assert isinstance(row.record, TopicRecord)
                topic = topics[name] = TopicImage(name, row.record, row.version)
                topics_by_id[topic.id] = topic
                count += len(topic.partitions)
    return MetadataImage(
        delta.generation,
        topics,
        topics_by_id,
        count,
        _configs(image.broker_configs, _of(delta, BROKER_CONFIG_PREFIX)),
        _configs(image.group_configs, _of(delta, GROUP_CONFIG_PREFIX)),
        _configs(image.client_quotas, _of(delta, QUOTA_PREFIX)),
        _nodes(image.nodes, _of(delta, NODE_PREFIX)),
        _only(image.controller, delta, CONTROLLER_KEY, ControllerRecord),
        _only(image.producer_ids, delta, PRODUCER_IDS_KEY, ProducerIdsRecord),
        _only(image.features, delta, FEATURES_KEY, FeaturesRecord),
        _only(image.history, delta, HISTORY_KEY, HistoryRecord),
    )


def _of(delta: MetadataDelta, prefix: str) -> dict[str, Row | None]:
    return {key.removeprefix(prefix): row for key, row in delta.rows.items() if key.startswith(prefix)}


def _configs(table: Mapping[str, Configs], rows: Mapping[str, Row | None]) -> Mapping[str, Configs]:
    if not rows:
        return table
    new = dict(table)
    for name, row in rows.items():
        if row is None:
            new.pop(name, None)
        else:
            assert not isinstance(row.record, KeptRecord)
            new[name] = row.record
    return new


def _nodes(table: Mapping[str, NodeRecord], rows: Mapping[str, Row | None]) -> Mapping[str, NodeRecord]:
    if not rows:
        return table
    new = {name: record for name, record in table.items() if name not in rows}
    for name, row in rows.items():
        if row is not None:
            assert isinstance(row.record, NodeRecord)
            new[name] = replace(row.record, broker_epoch=row.record.broker_epoch or row.version, version=row.version)
    return new


def _only(known: _Only | None, delta: MetadataDelta, key: str, kind: type[_Only]) -> _Only | None:
    """The record of a kind of which there is one row, or none."""
    if key not in delta.rows:
        return known
    row = delta.rows[key]
    if row is None:
        return None
    assert isinstance(row.record, kind)
    return replace(row.record, version=row.version)


# ---- from and to the rows of the store -----------------------------------------------------------------------------


def read_image(store: MetadataStore) -> MetadataImage:
    """All that the store says now. Raises StoreFailed."""
    return changed(MetadataImage(), _difference(store, MetadataImage()))


def delta_since(store: MetadataStore, image: MetadataImage) -> MetadataDelta:
    """What has changed in the store since this image. Raises StoreFailed."""
    return _followed(store, image, image.generation, {}) or _difference(store, image)


def encoded(record: Record) -> bytes:
    """The value of a record's row."""
    if isinstance(record, KeptRecord):
        return record.encode()
    return json.dumps(dict(record)).encode()


def _difference(store: MetadataStore, image: MetadataImage) -> MetadataDelta:
    """Every row of the store, and which of the image's are gone."""
    tables = (image.topics, image.broker_configs, image.group_configs, image.client_quotas, image.nodes)
    rows_of_one = (image.controller, image.producer_ids, image.features, image.history)
    only = [() if each is None else ("",) for each in rows_of_one]
    gone = [prefix + name for prefix, table in zip(_PREFIXES, (*tables, *only), strict=True) for name in table]
    while True:
        generation = store.generation
        rows: dict[str, Row | None] = dict.fromkeys(gone)
        for prefix in _PREFIXES:
            rows |= {key: _row(store, image, key, row) for key, row in store.list(prefix)}
        if (delta := _followed(store, image, generation, rows)) is not None:
            return delta


def _followed(
    store: MetadataStore, image: MetadataImage, generation: int, rows: dict[str, Row | None]
) -> MetadataDelta | None:
    """These rows, of that generation or newer, and what was written since, as of one moment; None where that is too
    long ago to tell. `image`: what is known already."""
    while True:
        changes = store.changes_since(generation)
        if changes is None:
            return None
        keys = [key for key in changes.keys if key.startswith(_PREFIXES)]
        rows |= {key: _row(store, image, key, row) for key, row in zip(keys, store.get_many(keys), strict=True)}
        generation = changes.generation
        if store.generation == generation:  # nobody wrote a row meanwhile
            return MetadataDelta(generation, rows)


def _row(store: MetadataStore, image: MetadataImage, key: str, row: Versioned | None) -> Row | None:
    if row is None:
        return None
    if key.startswith(TOPIC_PREFIX):
        topic = image.topics.get(key.removeprefix(TOPIC_PREFIX))
        known = () if topic is None else topic.partitions
        return Row(decoded(store, key, lambda value: TopicRecord.decode(value, known), row.value), row.version)
    for prefix, kind in _KINDS:
        if key.startswith(prefix):
            return Row(decoded(store, key, kind.decode, row.value), row.version)
    return Row(decoded(store, key, lambda value: texts(json.loads(value)), row.value), row.version)
