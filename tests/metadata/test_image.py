"""The metadata image: a pure function of what was committed, however it was told and whoever committed it."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.metadata.configs import BROKER_CONFIGS, GROUP_CONFIGS
from ottla.metadata.image import MetadataDelta, MetadataImage, changed, delta_since, read_image
from ottla.metadata.memory import MemoryStore
from ottla.metadata.nodes import NodeRecord
from ottla.metadata.row_kinds import Row, encoded
from ottla.metadata.store import CHANGES_MAX, Delete, Put
from ottla.metadata.topics import TOPICS, TopicImage, TopicRecord, Topics, key_of, placed_on


def record(number: int, partitions: int = 1, **configs: str) -> TopicRecord:
    return TopicRecord(number.to_bytes(16, "big"), configs, placed_on(1, partitions))


def test_a_topic_comes_changes_and_goes() -> None:
    empty = MetadataImage()
    made = changed(empty, MetadataDelta(5, {key_of("t"): Row(record(1, 3), 5)}))
    topic = TopicImage("t", record(1, 3), 5)
    assert made == MetadataImage.of(5, {TOPICS: Topics({"t": topic}, {topic.id: topic}, 3)})
    assert made.partition("t", 2) == placed_on(1, 1)[0]
    assert made.partition("t", 3) is made.partition("t", -1) is made.partition("u", 0) is None
    grown = changed(made, MetadataDelta(6, {key_of("t"): Row(record(1, 4), 6)}))
    assert (grown.partition_count, grown.topics["t"].version, len(grown.topics_by_id)) == (4, 6, 1)
    anew = changed(grown, MetadataDelta(9, {key_of("t"): Row(record(2), 9)}))
    assert (anew.partition_count, list(anew.topics_by_id)) == (1, [record(2).topic_id])
    assert changed(anew, MetadataDelta(10, {key_of("t"): None})) == MetadataImage(10)
    assert empty == MetadataImage()
    assert made == MetadataImage.of(5, {TOPICS: Topics({"t": topic}, {topic.id: topic}, 3)})


def test_what_a_delta_does_not_name_is_shared() -> None:
    image = changed(MetadataImage(), MetadataDelta(1, {key_of("t"): Row(record(1), 1)}))
    image = changed(image, MetadataDelta(2, {"config/group/g": Row({"a": "1"}, 2)}))
    later = changed(image, MetadataDelta(3, {"config/broker/1": Row({"b": "2"}, 3), "producer-ids": None}))
    assert later.topics is image.topics
    assert later[GROUP_CONFIGS] is image[GROUP_CONFIGS]
    assert later[BROKER_CONFIGS] == {"1": {"b": "2"}}
    assert changed(later, MetadataDelta(4, {"config/broker/1": None}))[BROKER_CONFIGS] == {}


ROWS = ["topic/a", "topic/b", "topic/c.d", "config/group/g", "config/broker/", "config/broker/1", "deleted/00", "other"]


def value_of(key: str, number: int) -> bytes:
    if key.startswith("topic/"):
        return encoded(record(number * len(ROWS) + ROWS.index(key), number % 3 + 1))
    return encoded({"number": str(number)})


@given(
    st.lists(st.dictionaries(st.sampled_from(ROWS), st.none() | st.integers(0, 9), max_size=4), max_size=30),
    st.sets(st.integers(0, 29)),
)
def test_images_at_one_generation_are_equal(commits: list[dict[str, Any]], told: set[int]) -> None:
    """One is told of each commit, one of several at once, one reads everything."""
    store = MemoryStore()
    each = some = MetadataImage()
    for at, rows in enumerate(commits):
        store.commit([Delete(key) if n is None else Put(key, value_of(key, n)) for key, n in rows.items()])
        each = changed(each, delta_since(store, each))
        if at in told:
            some = changed(some, delta_since(store, some))
            assert some == each
    assert changed(some, delta_since(store, some)) == each == read_image(store)


def test_who_is_too_far_behind_reads_everything() -> None:
    store = MemoryStore()
    store.commit([Put(key_of("old"), encoded(record(1))), Put(key_of("kept"), encoded(record(2)))])
    behind = read_image(store)
    store.commit([Delete(key_of("old")), Put("config/group/g", encoded({"a": "1"}))])
    for _ in range(CHANGES_MAX):
        store.commit([Put("other", b"")])
    assert store.changes_since(behind.generation) is None
    assert changed(behind, delta_since(store, behind)) == read_image(store)
    assert list(read_image(store).topics) == ["kept"]


def test_a_node_tells_which_of_its_logs_take_nothing() -> None:
    whole = NodeRecord("there", 9092)
    assert b"offline" not in whole.encode()
    failing = replace(whole, offline=((bytes(range(16)), 3),), by_fsync=True)
    assert NodeRecord.decode(failing.encode()) == failing


@pytest.mark.parametrize("after", [2, 3, 5])
def test_only_the_partitions_that_changed_are_made_anew(after: int) -> None:
    """Of a topic's row, whoever wrote it; whatever there is more or less of."""
    store = MemoryStore()
    before = record(1, 3)
    store.commit([Put(key_of("t"), before.encode())])
    image = read_image(store)
    known = image.topics["t"].partitions
    partitions = [*placed_on(1, after)]
    changes: list[dict[str, Any]] = [
        {"leader": 2},
        {"leader_epoch": 1},
        {"partition_epoch": 1},
        {"replicas": (1, 2)},
        {"isr": ()},
        {"elr": (2,)},
        {"last_known_elr": (2,)},
        {"adding": (2,)},
        {"removing": (1,)},
        {"recovering": True},
    ]
    for change in changes:
        partitions[1] = replace(known[1], **change)
        store.commit([Put(key_of("t"), replace(before, partitions=tuple(partitions)).encode())])
        found = changed(image, delta_since(store, image)).topics["t"].partitions
        assert found == tuple(partitions)
        assert [found[at] is known[at] for at in range(min(after, 3))] == [True, False, True][:after]
