"""CreateTopics, DeleteTopics, CreatePartitions."""

from __future__ import annotations

import uuid
from typing import Any

from ..batches import batch
from ..stage import Stage


def topic(name: str, partitions: int = 1, replicas: int = 1, **more: Any) -> dict[str, Any]:
    return {"name": name, "num_partitions": partitions, "replication_factor": replicas} | more


def own_configs(answer: dict[str, Any]) -> dict[str, Any]:
    """Of the configs in a CreateTopics answer keep those that the topic itself was given."""
    for entry in answer.get("topics", []):
        if "configs" in entry:
            entry["configs"] = [c for c in entry["configs"] if c.get("config_source") == 1]
    return answer


def create(s: Stage) -> None:
    api = "CreateTopics"
    s.ask("one partition", api, "all", make=lambda v: {"topics": [topic(s.name(f"one.v{v}"))]}, keep=own_configs)
    s.ask(
        "the broker's own numbers",
        api,
        "4-",
        make=lambda v: {"topics": [topic(s.name(f"def.v{v}"), -1, -1)]},
        keep=own_configs,
    )
    s.ask(
        "the broker's own numbers, old version",
        api,
        "2-3",
        make=lambda v: {"topics": [topic(s.name(f"old.v{v}"), -1, -1)]},
    )
    configs = [{"name": "retention.ms", "value": "1000"}, {"name": "cleanup.policy", "value": "compact,delete"}]
    s.ask(
        "configs",
        api,
        "all",
        make=lambda v: {"topics": [topic(s.name(f"conf.v{v}"), configs=configs)]},
        keep=own_configs,
    )
    several = [topic(s.name("s1")), topic(s.name("s2"), 2), topic(s.name("s3"), 0)]
    s.ask("several, one bad", api, topics=several, keep=own_configs)
    s.ask("none", api, "all", topics=[])
    s.ask("again", api, "all", topics=[topic(s.name("s1"))])


def create_validate_only(s: Stage) -> None:
    s.ask("good", "CreateTopics", "all", topics=[topic(s.name("v"), 3)], validate_only=True, keep=own_configs)
    s.ask("bad", "CreateTopics", "all", topics=[topic(s.name("v"), 0)], validate_only=True)
    s.ask("it was not created", "Metadata", topics=[{"name": s.name("v")}], allow_auto_topic_creation=False)


def create_refused(s: Stage) -> None:
    def refused(what: str, *topics: dict[str, Any], **more: Any) -> None:
        s.ask(what, "CreateTopics", [2, 5, 7], topics=list(topics), **more, keep=own_configs)

    name = s.name("bad")
    refused("no partitions", topic(name, 0))
    refused("partitions below -1", topic(name, -2))
    refused("no replicas", topic(name, 1, 0))
    refused("replicas below -1", topic(name, 1, -2))
    refused("more replicas than brokers", topic(name, 1, 2))
    refused("twice the same name", topic(name), topic(name, 2))
    for what, illegal in {
        "empty": "",
        "dot": ".",
        "two dots": "..",
        "space": "a b",
        "slash": "a/b",
        "colon": "a:b",
    }.items():
        refused(f"illegal name: {what}", topic(illegal))
    refused("name of 250 letters", topic("x" * 250))
    refused("internal name", topic("__consumer_offsets"))
    refused("unknown config", topic(name, configs=[{"name": "no.such.config", "value": "1"}]))
    refused("null config value", topic(name, configs=[{"name": "retention.ms", "value": None}]))
    refused("config is no number", topic(name, configs=[{"name": "retention.ms", "value": "soon"}]))
    refused("config out of range", topic(name, configs=[{"name": "retention.ms", "value": "-2"}]))
    refused("config not among the allowed", topic(name, configs=[{"name": "cleanup.policy", "value": "hope"}]))
    refused("unknown compression", topic(name, configs=[{"name": "compression.type", "value": "rar"}]))
    refused("segment too small", topic(name, configs=[{"name": "segment.bytes", "value": "13"}]))
    refused("max.message.bytes below 0", topic(name, configs=[{"name": "max.message.bytes", "value": "-1"}]))
    refused("min.insync.replicas 0", topic(name, configs=[{"name": "min.insync.replicas", "value": "0"}]))
    refused("ratio above 1", topic(name, configs=[{"name": "min.cleanable.dirty.ratio", "value": "1.5"}]))
    refused("boolean that is none", topic(name, configs=[{"name": "preallocate", "value": "maybe"}]))
    refused("remote storage", topic(name, configs=[{"name": "remote.storage.enable", "value": "true"}]))
    refused(
        "compaction lags crossed",
        topic(
            name,
            configs=[
                {"name": "min.compaction.lag.ms", "value": "100"},
                {"name": "max.compaction.lag.ms", "value": "50"},
            ],
        ),
    )


def create_accepted_oddities(s: Stage) -> None:
    twice = [{"name": "retention.ms", "value": "1"}, {"name": "retention.ms", "value": "2"}]
    s.ask("config given twice", "CreateTopics", 7, topics=[topic(s.name("twice"), configs=twice)], keep=own_configs)
    s.ask("a.b", "CreateTopics", 7, topics=[topic(s.name("a.b"))], keep=own_configs)
    s.ask("a_b beside a.b", "CreateTopics", 7, topics=[topic(s.name("a_b"))], keep=own_configs)
    s.ask(
        "spaces around a value",
        "CreateTopics",
        7,
        topics=[topic(s.name("sp"), configs=[{"name": "retention.ms", "value": " 5 "}])],
        keep=own_configs,
    )
    s.ask(
        "empty cleanup.policy",
        "CreateTopics",
        7,
        topics=[topic(s.name("emp"), configs=[{"name": "cleanup.policy", "value": ""}])],
        keep=own_configs,
    )
    s.ask(
        "timeout 0",
        "CreateTopics",
        7,
        topics=[topic(s.name("t0"))],
        timeout_ms=0,
        keep=lambda a: a["topics"][0]["name"],
    )


def create_assigned(s: Stage) -> None:
    def assigned(what: str, short: str, partitions: int, replicas: int, *lists: tuple[int, list[int]]) -> None:
        assignments = [{"partition_index": i, "broker_ids": ids} for i, ids in lists]
        s.ask(
            what,
            "CreateTopics",
            [2, 7],
            keep=own_configs,
            validate_only=True,
            topics=[topic(s.name(short), partitions, replicas, assignments=assignments)],
        )

    me, stranger = s.node_id, s.node_id + 100
    assigned("good", "as1", -1, -1, (0, [me]), (1, [me]))
    assigned("unordered", "as2", -1, -1, (1, [me]), (0, [me]))
    assigned("with a partition count", "as3", 2, -1, (0, [me]), (1, [me]))
    assigned("with a replication factor", "as4", -1, 1, (0, [me]))
    assigned("a hole", "as5", -1, -1, (0, [me]), (2, [me]))
    assigned("not from 0", "as6", -1, -1, (1, [me]))
    assigned("a partition twice", "as7", -1, -1, (0, [me]), (0, [me]))
    assigned("unknown broker", "as8", -1, -1, (0, [stranger]))
    assigned("a broker twice", "as9", -1, -1, (0, [me, me]))
    assigned("no brokers", "as10", -1, -1, (0, []))
    assigned("lists of unequal length", "as11", -1, -1, (0, [me]), (1, [me, stranger]))
    assigned("negative partition", "as12", -1, -1, (-1, [me]))


def delete(s: Stage) -> None:
    for version in s.versions("DeleteTopics"):
        name = s.create(f"gone.v{version}")
        fields: dict[str, Any] = {"topics": [{"name": name}]} if version == 6 else {"topic_names": [name]}
        s.ask("by name", "DeleteTopics", version, timeout_ms=10000, **fields)
        s.settle()
        s.ask("again", "DeleteTopics", version, timeout_ms=10000, **fields)
        s.ask("it is gone", "Metadata", 4, topics=[{"name": name}], allow_auto_topic_creation=False)
    s.ask(
        "none",
        "DeleteTopics",
        "all",
        make=lambda v: {"topics": []} if v == 6 else {"topic_names": []},
        timeout_ms=10000,
    )


def delete_by_id(s: Stage) -> None:
    name = s.create("byid")
    known, unknown = s.topic_id(name), uuid.UUID(int=78).bytes
    s.ask("unknown id", "DeleteTopics", 6, topics=[{"topic_id": unknown, "name": None}], timeout_ms=10000)
    s.ask("neither", "DeleteTopics", 6, topics=[{"name": None}], timeout_ms=10000)
    s.ask("both", "DeleteTopics", 6, topics=[{"topic_id": known, "name": name}], timeout_ms=10000)
    s.ask("id twice", "DeleteTopics", 6, topics=[{"topic_id": known, "name": None}] * 2, timeout_ms=10000)
    s.settle()
    s.ask("known id", "DeleteTopics", 6, topics=[{"topic_id": known, "name": None}], timeout_ms=10000)
    s.settle()
    s.ask("again", "DeleteTopics", 6, topics=[{"topic_id": known, "name": None}], timeout_ms=10000)


def delete_refused(s: Stage) -> None:
    name = s.create("dup")
    s.ask("unknown name", "DeleteTopics", 6, topics=[{"name": s.name("nope")}], timeout_ms=10000)
    s.ask("illegal name", "DeleteTopics", 6, topics=[{"name": "a b"}], timeout_ms=10000)
    s.ask("name twice", "DeleteTopics", 6, topics=[{"name": name}] * 2, timeout_ms=10000)
    s.settle()
    s.ask(
        "name and its id in two entries",
        "DeleteTopics",
        6,
        timeout_ms=10000,
        topics=[{"name": name}, {"topic_id": s.topic_id(name), "name": None}],
    )
    s.settle()
    s.ask("name twice, old version", "DeleteTopics", 5, topic_names=[name, name], timeout_ms=10000)


def recreate(s: Stage) -> None:
    """A topic with a used name is a new topic: another id, an empty log."""
    name = s.create("again")
    s.append(name, batch("old"))
    old = s.topic_id(name)
    s.send("DeleteTopics", topics=[{"name": name}], timeout_ms=10000)
    s.settle()
    s.create("again")
    answer = s.send("Metadata", topics=[{"name": name}])
    s.note("the id is another", answer.topics[0].topic_id != old)
    s.ask(
        "the log is empty",
        "ListOffsets",
        7,
        replica_id=-1,
        topics=[{"name": name, "partitions": [{"partition_index": 0, "timestamp": -1}]}],
    )
    s.ask("the old id is unknown", "Metadata", topics=[{"topic_id": old, "name": None}])


def create_partitions(s: Stage) -> None:
    api = "CreatePartitions"

    def grow(name: str, count: int, assignments: Any = None) -> dict[str, Any]:
        return {"topics": [{"name": name, "count": count, "assignments": assignments}], "timeout_ms": 10000}

    for version in s.versions(api):
        name = s.create(f"grow.v{version}")
        s.ask("to 3, validate only", api, version, **grow(name, 3), validate_only=True)
        s.ask("to 3", api, version, **grow(name, 3))
        s.ready(name, 3)
        s.ask("to 3 again", api, version, **grow(name, 3))
        s.ask("to 2", api, version, **grow(name, 2))
        s.ask("to 0", api, version, **grow(name, 0))
        s.ask("to -1", api, version, **grow(name, -1))
        s.ask("unknown topic", api, version, **grow(s.name("nope"), 3))
    me, name = s.node_id, s.create("as")
    s.ask("assigned", api, 3, **grow(name, 2, [{"broker_ids": [me]}]))
    s.ready(name, 2)
    s.ask("too few assignments", api, 3, **grow(name, 4, [{"broker_ids": [me]}]))
    s.ask("too many assignments", api, 3, **grow(name, 3, [{"broker_ids": [me]}, {"broker_ids": [me]}]))
    s.ask("empty assignments", api, 3, **grow(name, 3, []))
    s.ask("unknown broker", api, 3, **grow(name, 3, [{"broker_ids": [me + 100]}]))
    s.ask("broker twice", api, 3, **grow(name, 3, [{"broker_ids": [me, me]}]))
    s.ask("no broker", api, 3, **grow(name, 3, [{"broker_ids": []}]))
    s.ask(
        "internal topic's name, illegal name, empty name",
        api,
        3,
        timeout_ms=10000,
        topics=[{"name": "a b", "count": 3, "assignments": None}, {"name": "", "count": 3, "assignments": None}],
    )
    s.ask("none", api, "all", topics=[], timeout_ms=10000)
    double = {"name": name, "count": 5, "assignments": None}
    s.ask("the same topic twice", api, 3, topics=[double, double | {"count": 6}], timeout_ms=10000)
