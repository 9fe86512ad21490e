"""Metadata and DescribeTopicPartitions: names, ids, auto-creation, authorized operations."""

from __future__ import annotations

import uuid

from ..stage import Stage


def known_topics(s: Stage) -> None:
    one, three = s.create("one"), s.create("three", 3)
    s.ask("two topics by name", "Metadata", "all", topics=[{"name": one}, {"name": three}])
    s.ask("the same name twice", "Metadata", "all", topics=[{"name": one}, {"name": one}])
    s.ask("none", "Metadata", "1-", topics=[])
    s.ask("all, by null", "Metadata", "1-", topics=None, ours=True)
    s.ask("all, by the empty list of v0", "Metadata", 0, topics=[], ours=True)
    s.ask(
        "authorized operations",
        "Metadata",
        "8-",
        topics=[{"name": one}],
        include_cluster_authorized_operations=True,
        include_topic_authorized_operations=True,
    )


def by_id(s: Stage) -> None:
    topic = s.create("one")
    known, unknown = s.topic_id(topic), uuid.UUID(int=77).bytes
    s.ask("known id", "Metadata", "10-", topics=[{"topic_id": known, "name": None}])
    s.ask("unknown id", "Metadata", "10-", topics=[{"topic_id": unknown, "name": None}])
    s.ask(
        "known and unknown id",
        "Metadata",
        "12-",
        topics=[{"topic_id": known, "name": None}, {"topic_id": unknown, "name": None}],
    )
    s.ask("id and name", "Metadata", "12-", topics=[{"topic_id": known, "name": topic}])
    s.ask("id and another name", "Metadata", "12-", topics=[{"topic_id": known, "name": s.name("other")}])
    s.ask(
        "an id and a name, mixed entries",
        "Metadata",
        "12-",
        topics=[{"topic_id": known, "name": None}, {"name": topic}],
    )
    s.ask("neither id nor name", "Metadata", "12-", topics=[{"name": None}])


def unknown_names(s: Stage) -> None:
    quiet = {"allow_auto_topic_creation": False}
    s.ask("unknown, no creation", "Metadata", "4-", topics=[{"name": s.name("nope")}], **quiet)
    s.ask(
        "unknown, operations asked for",
        "Metadata",
        "8-",
        topics=[{"name": s.name("nope")}],
        include_topic_authorized_operations=True,
        **quiet,
    )
    for what, name in ILLEGAL.items():
        s.ask(f"illegal name: {what}", "Metadata", [1, 4, 9, 13], topics=[{"name": name}])
        s.ask(f"illegal name, no creation: {what}", "Metadata", [4, 13], topics=[{"name": name}], **quiet)


ILLEGAL = {
    "empty": "",
    "dot": ".",
    "two dots": "..",
    "space": "a b",
    "slash": "a/b",
    "long": "x" * 250,
    "not ASCII": "ä",
}


def auto_creation(s: Stage) -> None:
    """The first answer does not know the topic yet; soon after it is there with num.partitions."""
    for version in (0, 1, 4, 8, 9, 12, 13):
        name = s.name(f"auto.v{version}")
        s.ask("first answer", "Metadata", version, topics=[{"name": name}], allow_auto_topic_creation=True)
        s.ready(name)
        s.ask("after a while", "Metadata", version, topics=[{"name": name}])


def describe_topic_partitions(s: Stage) -> None:
    ask, api = s.ask, "DescribeTopicPartitions"
    one, two, five = s.create("a1"), s.create("b2", 2), s.create("c5", 5)
    ask("one", api, topics=[{"name": one}])
    ask("several, unsorted", api, topics=[{"name": five}, {"name": one}, {"name": two}])
    ask("twice the same", api, topics=[{"name": one}, {"name": one}])
    ask("unknown", api, topics=[{"name": s.name("nope")}])
    ask("illegal name", api, topics=[{"name": "a b"}])
    ask("empty name", api, topics=[{"name": ""}])
    ask("all", api, topics=[], ours=True, keep=lambda a: [t.get("name") for t in a.get("topics", [])])
    every = [{"name": one}, {"name": two}, {"name": five}]
    ask("limit 1", api, topics=every, response_partition_limit=1)
    ask("limit 4 cuts the third", api, topics=every, response_partition_limit=4)
    ask("limit 0", api, topics=every, response_partition_limit=0)
    ask("limit below 0", api, topics=every, response_partition_limit=-1)
    ask("limit beyond the broker's own", api, topics=every, response_partition_limit=1_000_000)
    ask("from a cursor", api, topics=every, cursor={"topic_name": five, "partition_index": 2})
    ask("cursor at a topic's end", api, topics=every, cursor={"topic_name": two, "partition_index": 2})
    ask("cursor past a topic's end", api, topics=every, cursor={"topic_name": two, "partition_index": 9})
    ask(
        "cursor at a topic not asked for",
        api,
        topics=[{"name": one}, {"name": five}],
        cursor={"topic_name": two, "partition_index": 0},
    )
    ask("cursor behind every topic", api, topics=every, cursor={"topic_name": s.name("zz"), "partition_index": 0})
    ask("cursor below 0", api, topics=every, cursor={"topic_name": two, "partition_index": -1})
    ask(
        "cursor and unknown topic",
        api,
        topics=[{"name": s.name("nope")}, {"name": one}],
        cursor={"topic_name": one, "partition_index": 0},
    )
