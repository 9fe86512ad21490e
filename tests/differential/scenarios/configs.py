"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources."""

from __future__ import annotations

from typing import Any

from ..stage import Stage

TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, REMOVE, APPEND, SUBTRACT = 0, 1, 2, 3


def resource(kind: int, name: str, keys: list[str] | None = None) -> dict[str, Any]:
    return {"resource_type": kind, "resource_name": name, "configuration_keys": keys}


def given(s: Stage, name: str, what: str) -> None:
    """Ask for the configs that were set on a topic."""
    s.ask(
        what,
        "DescribeConfigs",
        4,
        resources=[resource(TOPIC, name)],
        keep=lambda a: [c for c in a["results"][0]["configs"] if c.get("config_source") == 1],
    )


def describe_topic(s: Stage) -> None:
    api = "DescribeConfigs"
    name = s.create("t", retention_ms="1234", cleanup_policy="compact")
    s.ask("every config", api, 4, resources=[resource(TOPIC, name)])
    keys = ["retention.ms", "cleanup.policy", "segment.bytes"]
    s.ask("three configs", api, "all", resources=[resource(TOPIC, name, keys)])
    s.ask("with synonyms", api, "all", resources=[resource(TOPIC, name, keys)], include_synonyms=True)
    s.ask(
        "with documentation", api, "3-", resources=[resource(TOPIC, name, ["retention.ms"])], include_documentation=True
    )
    s.ask("unknown config name", api, "all", resources=[resource(TOPIC, name, ["no.such"])])
    s.ask("no config name", api, "all", resources=[resource(TOPIC, name, [])])
    s.ask("config name twice", api, "all", resources=[resource(TOPIC, name, ["retention.ms"] * 2)])
    s.ask("unknown topic", api, "all", resources=[resource(TOPIC, s.name("nope"), keys)])
    s.ask("empty topic name", api, "all", resources=[resource(TOPIC, "", keys)])
    s.ask("illegal topic name", api, "all", resources=[resource(TOPIC, "a b", keys)])
    s.ask("topic twice", api, "all", resources=[resource(TOPIC, name, ["retention.ms"])] * 2)
    s.ask("none", api, "all", resources=[])


def describe_others(s: Stage) -> None:
    api, me = "DescribeConfigs", str(s.node_id)
    keys = [
        "num.partitions",
        "message.max.bytes",
        "log.retention.ms",
        "log.retention.hours",
        "auto.create.topics.enable",
        "log.segment.bytes",
        "compression.type",
        "log.cleanup.policy",
        "group.initial.rebalance.delay.ms",
    ]
    s.ask("this broker", api, "all", resources=[resource(BROKER, me, keys)], include_synonyms=True)
    s.ask("the default broker", api, "all", resources=[resource(BROKER, "", keys)])
    s.ask("another broker", api, "all", resources=[resource(BROKER, "99", keys)])
    s.ask("a broker that is no number", api, "all", resources=[resource(BROKER, "one", keys)])
    s.ask("a group nobody knows", api, "all", resources=[resource(GROUP, s.name("g"), None)], include_synonyms=True)
    s.ask("empty group name", api, 4, resources=[resource(GROUP, "", None)])
    s.ask("client metrics", api, 4, resources=[resource(CLIENT_METRICS, s.name("m"), None)])
    s.ask("unknown resource type", api, 4, resources=[resource(77, "x", None)])
    s.ask("resource type 0", api, 4, resources=[resource(0, "x", None)])


def alter_topic(s: Stage) -> None:
    """AlterConfigs replaces everything a topic was given."""
    api, name = "AlterConfigs", s.create("t", retention_ms="1234", cleanup_policy="compact")

    def alter(what: str, versions: Any, *configs: tuple[str, str | None], target: str = name, **more: Any) -> None:
        entry = {
            "resource_type": TOPIC,
            "resource_name": target,
            "configs": [{"name": k, "value": v} for k, v in configs],
        }
        s.ask(what, api, versions, resources=[entry], **more)
        s.settle()

    alter("validate only", "all", ("retention.ms", "77"), validate_only=True)
    given(s, name, "nothing changed")
    alter("good", "all", ("segment.bytes", "1048576"))
    given(s, name, "the others are gone")
    alter("null value", "all", ("retention.ms", None))
    alter("unknown name", "all", ("no.such", "1"))
    alter("illegal value", "all", ("retention.ms", "soon"))
    alter("one good one bad", "all", ("retention.ms", "5"), ("segment.bytes", "1"))
    given(s, name, "a refused request changes nothing")
    alter("name twice", "all", ("retention.ms", "5"), ("retention.ms", "6"))
    alter("unknown topic", "all", ("retention.ms", "5"), target=s.name("nope"))
    alter("illegal topic name", "all", ("retention.ms", "5"), target="a b")
    alter("empty list", "all")
    given(s, name, "nothing left")
    # The same topic twice is not asked: Kafka never answers it.
    one = {"resource_type": TOPIC, "resource_name": name, "configs": [{"name": "retention.ms", "value": "5"}]}
    s.ask("none", api, "all", resources=[])
    s.ask("unknown resource type", api, "all", resources=[one | {"resource_type": 77}])


def incremental_topic(s: Stage) -> None:
    api, name = "IncrementalAlterConfigs", s.create("t", retention_ms="1234")

    def alter(what: str, *changes: tuple[str, int, str | None], target: str = name, **more: Any) -> None:
        configs = [{"name": k, "config_operation": op, "value": v} for k, op, v in changes]
        s.ask(
            what, api, "all", resources=[{"resource_type": TOPIC, "resource_name": target, "configs": configs}], **more
        )
        s.settle()

    alter("validate only", ("retention.ms", SET, "77"), validate_only=True)
    given(s, name, "nothing changed")
    alter("set", ("segment.bytes", SET, "1048576"))
    given(s, name, "the others stay")
    alter("append", ("cleanup.policy", APPEND, "compact"))
    given(s, name, "a list grew")
    alter("append what is there", ("cleanup.policy", APPEND, "compact"))
    alter("subtract", ("cleanup.policy", SUBTRACT, "delete"))
    given(s, name, "a list shrank")
    alter("subtract what is not there", ("cleanup.policy", SUBTRACT, "delete"))
    alter("append an illegal value", ("cleanup.policy", APPEND, "hope"))
    alter("append to a config that is no list", ("retention.ms", APPEND, "5"))
    alter("subtract from a config that is no list", ("retention.ms", SUBTRACT, "5"))
    alter("remove", ("retention.ms", REMOVE, None))
    alter("remove what is not set", ("retention.bytes", REMOVE, None))
    alter("remove with a value", ("segment.bytes", REMOVE, "1"))
    given(s, name, "what is left")
    alter("set null", ("retention.ms", SET, None))
    alter("append null", ("cleanup.policy", APPEND, None))
    alter("unknown name", ("no.such", SET, "1"))
    alter("remove unknown name", ("no.such", REMOVE, None))
    alter("illegal value", ("retention.ms", SET, "soon"))
    alter("unknown operation", ("retention.ms", 9, "5"))
    alter("name twice", ("retention.ms", SET, "5"), ("retention.ms", SET, "6"))
    alter("one good one bad", ("retention.ms", SET, "5"), ("segment.bytes", SET, "1"))
    alter("unknown topic", ("retention.ms", SET, "5"), target=s.name("nope"))
    alter("no changes")
    given(s, name, "a refused request changes nothing")
    change = {
        "resource_type": TOPIC,
        "resource_name": name,
        "configs": [{"name": "retention.ms", "config_operation": SET, "value": "5"}],
    }
    s.ask("topic twice", api, "all", resources=[change, change])
    s.ask("none", api, "all", resources=[])
    s.ask("unknown resource type", api, "all", resources=[change | {"resource_type": 77}])
    s.ask("resource type 0", api, "all", resources=[change | {"resource_type": 0}])


def incremental_broker(s: Stage) -> None:
    api, me = "IncrementalAlterConfigs", str(s.node_id)

    def alter(what: str, target: str, *changes: tuple[str, int, str | None], kind: int = BROKER, **more: Any) -> None:
        configs = [{"name": k, "config_operation": op, "value": v} for k, op, v in changes]
        s.ask(what, api, 1, resources=[{"resource_type": kind, "resource_name": target, "configs": configs}], **more)
        s.settle()

    def shown(what: str, target: str, *keys: str, kind: int = BROKER) -> None:
        s.ask(what, "DescribeConfigs", 4, resources=[resource(kind, target, list(keys))], include_synonyms=True)

    alter("read-only config", me, ("num.partitions", SET, "7"), validate_only=True)
    alter("a dynamic one, validate only", me, ("log.retention.ms", SET, "99000000"), validate_only=True)
    alter("for one broker", me, ("log.flush.interval.ms", SET, "99000000"))
    shown("it shows", me, "log.flush.interval.ms")
    alter("for all brokers", "", ("log.flush.interval.ms", SET, "98000000"))
    shown("it shows below the broker's own", me, "log.flush.interval.ms")
    shown("it shows as the default", "", "log.flush.interval.ms")
    topic = s.create("inherits")
    shown("a topic inherits it", topic, "flush.ms", kind=TOPIC)
    alter("remove the broker's", me, ("log.flush.interval.ms", REMOVE, None))
    shown("the default's is left", me, "log.flush.interval.ms")
    alter("remove the default", "", ("log.flush.interval.ms", REMOVE, None))
    shown("nothing is left", me, "log.flush.interval.ms")
    alter("unknown name", me, ("no.such", SET, "1"))
    alter("illegal value", me, ("log.retention.ms", SET, "soon"))
    alter("another broker", "99", ("log.retention.ms", SET, "99000000"))
    alter("a broker that is no number", "one", ("log.retention.ms", SET, "99000000"))


def groups(s: Stage) -> None:
    """Group configs are kept for groups that do not exist yet."""
    api, group = "IncrementalAlterConfigs", s.name("g")

    def alter(what: str, target: str, *changes: tuple[str, int, str | None]) -> None:
        configs = [{"name": k, "config_operation": op, "value": v} for k, op, v in changes]
        s.ask(what, api, 1, resources=[{"resource_type": GROUP, "resource_name": target, "configs": configs}])
        s.settle()

    alter("session timeout", group, ("consumer.session.timeout.ms", SET, "50000"))
    s.ask(
        "it shows",
        "DescribeConfigs",
        4,
        resources=[resource(GROUP, group, ["consumer.session.timeout.ms"])],
        include_synonyms=True,
    )
    s.ask("it is listed", "ListConfigResources", 1, resource_types=[GROUP], ours=True)
    alter("too short", group, ("consumer.session.timeout.ms", SET, "1"))
    alter("too long", group, ("consumer.session.timeout.ms", SET, "99999999"))
    alter("not above the heartbeat interval", group, ("consumer.heartbeat.interval.ms", SET, "60000"))
    alter("unknown name", group, ("no.such", SET, "1"))
    alter("share group lock", group, ("share.record.lock.duration.ms", SET, "20000"))
    alter("illegal offset reset", group, ("share.auto.offset.reset", SET, "sometime"))
    alter("good offset reset", group, ("share.auto.offset.reset", SET, "earliest"))
    alter("empty group name", "", ("consumer.session.timeout.ms", SET, "50000"))
    alter("remove", group, ("consumer.session.timeout.ms", REMOVE, None))
    s.ask(
        "everything of the group", "DescribeConfigs", 4, resources=[resource(GROUP, group, None)], include_synonyms=True
    )


def list_resources(s: Stage) -> None:
    s.create("t")
    s.ask("v0 lists client metrics", "ListConfigResources", 0)
    s.ask("topics", "ListConfigResources", 1, resource_types=[TOPIC], ours=True)
    s.ask("brokers", "ListConfigResources", 1, resource_types=[BROKER])
    s.ask("broker loggers", "ListConfigResources", 1, resource_types=[LOGGER])
    s.ask("client metrics", "ListConfigResources", 1, resource_types=[CLIENT_METRICS])
    s.ask(
        "nothing asked: all",
        "ListConfigResources",
        1,
        resource_types=[],
        keep=lambda a: sorted({r.get("resource_type", 16) for r in a["config_resources"]} - {GROUP}),
    )
    s.ask("unknown type", "ListConfigResources", 1, resource_types=[77])
    s.ask("type twice", "ListConfigResources", 1, resource_types=[TOPIC, TOPIC], ours=True)
