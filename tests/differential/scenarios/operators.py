"""What operators' tools ask: ACLs, elections, reassignments, quotas, credentials, features, quorum, transactions."""

from __future__ import annotations

from typing import Any

from ..stage import Stage

TOPIC, GROUP, CLUSTER = 2, 3, 4
LITERAL, ANY = 3, 1
READ, ALLOW = 3, 3


def acls(s: Stage) -> None:
    """On a broker without an authorizer."""
    every: dict[str, Any] = {"resource_type_filter": 1, "pattern_type_filter": ANY, "operation": 1}
    every |= {"permission_type": 1, "resource_name_filter": None, "principal_filter": None, "host_filter": None}
    s.ask("describe all", "DescribeAcls", "all", **every)
    s.ask("describe nonsense", "DescribeAcls", 3, **(every | {"resource_type_filter": 99}))
    one = {"resource_type": TOPIC, "resource_name": s.name("t"), "resource_pattern_type": LITERAL}
    one |= {"principal": "User:ada", "host": "*", "operation": READ, "permission_type": ALLOW}
    s.ask("create one", "CreateAcls", "all", creations=[one])
    s.ask("create two", "CreateAcls", 3, creations=[one, one | {"principal": "User:bob"}])
    s.ask("create none", "CreateAcls", 3, creations=[])
    s.ask("delete all", "DeleteAcls", "all", filters=[every])
    s.ask("delete none", "DeleteAcls", 3, filters=[])


def elections(s: Stage) -> None:
    api = "ElectLeaders"
    name = s.create("t", 2)
    where = [{"topic": name, "partitions": [0, 1]}]
    s.ask("preferred", api, "all", topic_partitions=where)
    s.ask("unclean", api, "1-", election_type=1, topic_partitions=where)
    s.ask("unknown type", api, "1-", election_type=7, topic_partitions=where)
    s.ask("everywhere", api, "all", topic_partitions=None, ours=True)
    s.ask("unclean everywhere", api, "1-", election_type=1, topic_partitions=None, ours=True)
    s.ask("nowhere", api, "all", topic_partitions=[])
    s.ask("no partitions", api, 2, topic_partitions=[{"topic": name, "partitions": []}])
    s.ask("unknown topic", api, 2, topic_partitions=[{"topic": s.name("nope"), "partitions": [0]}])
    s.ask("unknown partition", api, 2, topic_partitions=[{"topic": name, "partitions": [0, 9]}])


def reassignments(s: Stage) -> None:
    api = "AlterPartitionReassignments"
    name, here = s.create("t", 2), s.node_id

    def to(*places: tuple[int, list[int] | None], topic: str = name) -> list[dict[str, Any]]:
        return [{"name": topic, "partitions": [{"partition_index": at, "replicas": to} for at, to in places]}]

    s.ask("where it is", api, "all", topics=to((0, [here])))
    s.ask("cancel nothing", api, "all", topics=to((0, None)))
    s.ask("to a broker that is not there", api, "all", topics=to((0, [99])))
    s.ask("to two", api, 1, topics=to((0, [here, 99])))
    s.ask("to two, the number kept", api, 1, topics=to((0, [here, 99])), allow_replication_factor_change=False)
    s.ask("to nobody", api, 1, topics=to((0, [])))
    s.ask("twice the same", api, 1, topics=to((0, [here, here])))
    s.ask("to a negative broker", api, 1, topics=to((0, [-1])))
    s.ask("good and bad", api, 1, topics=to((0, [here]), (1, [99]), (7, [here])))
    s.ask("unknown topic", api, 1, topics=to((0, [here]), topic=s.name("nope")))
    s.ask("unknown topic, cancelled", api, 1, topics=to((0, None), topic=s.name("nope")))
    s.ask("no topics", api, "all", topics=[])
    s.ask("list all", "ListPartitionReassignments", "all", topics=None)
    s.ask("list one", "ListPartitionReassignments", "all", topics=[{"name": name, "partition_indexes": [0, 9]}])
    s.ask("list an unknown one", "ListPartitionReassignments", "all", topics=[{"name": "no", "partition_indexes": [0]}])
    s.ask("list none", "ListPartitionReassignments", "all", topics=[])


def quotas(s: Stage) -> None:
    describe, alter = "DescribeClientQuotas", "AlterClientQuotas"
    user = {"entity_type": "user", "entity_name": s.name("ada")}

    def asked(kind: str, match_type: int = 0, match: str | None = None) -> dict[str, Any]:
        return {"entity_type": kind, "match_type": match_type, "match": match}

    def change(entity: list[dict[str, Any]], **op: Any) -> list[dict[str, Any]]:
        return [{"entity": entity, "ops": [{"key": "producer_byte_rate", "value": 1024.0} | op] if op else []}]

    s.ask("of everybody", describe, "all", components=[])
    s.ask("of a user", describe, "all", components=[asked("user", 0, s.name("ada"))])
    s.ask("of the default user", describe, 1, components=[asked("user", 1)])
    s.ask("of any client", describe, 1, components=[asked("client-id", 2)], strict=True)
    s.ask("of users and addresses", describe, 1, components=[asked("user", 2), asked("ip", 2)])
    s.ask("of users twice", describe, 1, components=[asked("user", 2), asked("user", 2)])
    s.ask("of a thing", describe, 1, components=[asked("thing", 2)])
    s.ask("of a nameless kind", describe, 1, components=[asked("", 2)])
    s.ask("match of another kind", describe, 1, components=[asked("user", 9)])
    s.ask("exact without a name", describe, 1, components=[asked("user", 0)])
    s.ask("any with a name", describe, 1, components=[asked("user", 2, "ada")])
    s.ask("set, tried", alter, "all", entries=change([user], remove=False), validate_only=True)
    s.ask("remove what is not there", alter, "all", entries=change([user], remove=True))
    s.ask("unknown key", alter, 1, entries=change([user], key="nonsense"), validate_only=True)
    s.ask("a negative rate", alter, 1, entries=change([user], value=-1.0), validate_only=True)
    s.ask("of a thing", alter, 1, entries=change([{"entity_type": "thing", "entity_name": "x"}], remove=True))
    s.ask("of nobody", alter, 1, entries=change([], remove=True))

    client = {"entity_type": "client-id", "entity_name": s.name("app")}
    by_default = {"entity_type": "user", "entity_name": None}
    address = {"entity_type": "ip", "entity_name": "127.0.0.1"}
    s.ask("half a byte", alter, 1, entries=change([user], value=1.5))
    s.ask("half a percent", alter, 1, entries=change([user], key="request_percentage", value=0.5), validate_only=True)
    s.ask("of an empty name", alter, 1, entries=change([{"entity_type": "user", "entity_name": ""}], remove=False))
    s.ask("of a user at an address", alter, 1, entries=change([user, address], value=1.0))
    s.ask("of an address, by another's key", alter, 1, entries=change([address], value=1.0))
    s.ask("set for a user", alter, 1, entries=change([user], remove=False))
    s.ask("set for a client", alter, 1, entries=change([client], key="consumer_byte_rate", value=2048.0))
    s.ask("set for both", alter, 1, entries=change([user, client], key="request_percentage", value=12.5))
    s.ask("set for all other users with this client", alter, 1, entries=change([by_default, client], remove=False))
    for strict in (False, True):
        how = "alone" if strict else "with others"
        s.ask(f"the user {how}", describe, "all", components=[asked("user", 0, s.name("ada"))], strict=strict)
        s.ask(f"the default user {how}", describe, 1, components=[asked("user", 1)], strict=strict)
        s.ask(f"any client {how}", describe, 1, components=[asked("client-id", 2)], strict=strict)
        both = [asked("user", 0, s.name("ada")), asked("client-id", 2)]
        s.ask(f"the user with any client {how}", describe, 1, components=both, strict=strict)
        s.ask(f"any user {how}", describe, 1, components=[asked("user", 2)], strict=strict)
        s.ask(f"somebody else {how}", describe, 1, components=[asked("user", 0, "nobody")], strict=strict)
    s.ask("of everything, strictly", describe, 1, components=[], strict=True)
    s.ask("set anew", alter, 1, entries=change([user], value=4096.0))
    s.settle()
    s.ask("the user's new one", describe, 1, components=[asked("user", 0, s.name("ada"))], strict=True)
    for entity, key in [
        ([user], "producer_byte_rate"),
        ([client], "consumer_byte_rate"),
        ([user, client], "request_percentage"),
        ([by_default, client], "producer_byte_rate"),
    ]:
        s.ask("remove", alter, 1, entries=change(entity, key=key, remove=True))
    s.ask("when all are gone", describe, 1, components=[])
    s.ask("nothing", alter, "all", entries=[])


def quotas_of_addresses(s: Stage) -> None:
    """Of connections: only tried, or far above what anybody here needs, as the scenario itself connects from there."""
    describe, alter = "DescribeClientQuotas", "AlterClientQuotas"

    def change(address: str | None, value: float = 100_000.0, *, remove: bool = False, **op: Any) -> dict[str, Any]:
        made = {"key": "connection_creation_rate", "value": value, "remove": remove} | op
        entity = [{"entity_type": "ip", "entity_name": address}]
        return {"entries": [{"entity": entity, "ops": [made]}], "validate_only": not remove}

    def asked(match_type: int, match: str | None = None) -> list[dict[str, Any]]:
        return [{"entity_type": "ip", "match_type": match_type, "match": match}]

    address = "10.1.2.3"
    for value in (1.0, 0.0, -1.0, 1.5, 3e9, float("inf")):
        s.ask(f"{value} a second, tried", alter, 1, **change(address, value))
    s.ask("for IPv6, tried", alter, 1, **change("::1"))
    s.ask("by default, tried", alter, 1, **change(None))
    s.ask("without a name, tried", alter, 1, **change(""))
    s.ask("no address, tried", alter, 1, **change("999.1.2.3"))
    s.ask("a host that is not there, tried", alter, 1, **change("no.such.host.invalid"))
    s.ask("a host that is not there, removed", alter, 1, **change("no.such.host.invalid", remove=True))
    s.ask("by a user's key, tried", alter, 1, **change(address, key="controller_mutation_rate"))
    s.ask("by an unknown key, removed", alter, 1, **change(address, remove=True, key="nonsense"))
    s.ask("set", alter, "all", **(change(address) | {"validate_only": False}))
    s.ask("set by default", alter, 1, **(change(None) | {"validate_only": False}))
    s.ask("the address", describe, "all", components=asked(0, address))
    s.ask("by default", describe, 1, components=asked(1))
    s.ask("any address", describe, 1, components=asked(2), strict=True)
    s.ask("another address", describe, 1, components=asked(0, "10.1.2.4"))
    s.ask("remove", alter, 1, **change(address, remove=True))
    s.ask("remove by default", alter, 1, **change(None, remove=True))
    s.ask("when all are gone", describe, 1, components=asked(2))


def quotas_of_changes(s: Stage) -> None:
    """Of topics: one that is used up with the first topic, and does not come back while this goes on."""
    describe, alter = "DescribeClientQuotas", "AlterClientQuotas"
    key, entity = "controller_mutation_rate", [{"entity_type": "client-id", "entity_name": s.name("app")}]

    def set_to(value: float | None) -> None:
        entries = [{"entity": entity, "ops": [{"key": key, "value": value or 0.0, "remove": value is None}]}]
        s.ask(f"the quota becomes {value}", alter, 1, entries=entries)
        s.settle()

    def new(*names: str, partitions: int = 1) -> list[dict[str, Any]]:
        return [{"name": s.name(n), "num_partitions": partitions, "replication_factor": 1} for n in names]

    def limited(step: str, api: str, version: int, **fields: Any) -> None:
        """Ask as the client that has the quota, on a connection that is not muted."""
        s.speak_as(s.name("app"), on="app")
        answer = s.ask(step, api, version, on="app", timeout_ms=30_000, **fields)
        s.note(f"{step} v{version}: throttled", answer.throttle_time_ms > 0)

    def names(answer: dict[str, Any]) -> dict[str, Any]:
        """What a new topic's configuration is, and its id, is another scenario's."""
        for topic in answer["topics"]:
            for other in ("configs", "topic_id", "topic_config_error_code"):
                topic.pop(other, None)
        return answer

    def create(step: str, version: int, *asked: dict[str, Any], **fields: Any) -> None:
        limited(step, "CreateTopics", version, topics=list(asked), keep=names, **fields)

    def grow(step: str, version: int, name: str, count: int, **fields: Any) -> None:
        limited(
            step,
            "CreatePartitions",
            version,
            topics=[{"name": s.name(name), "count": count, "assignments": None}],
            **fields,
        )

    def delete(step: str, version: int, *asked: str) -> None:
        by_name = {"topics": [{"name": s.name(n)} for n in asked]} if version > 5 else {}
        limited(step, "DeleteTopics", version, topic_names=[s.name(n) for n in asked], **by_name)

    for name in ("old", "older", "oldest"):
        s.create(name)
    set_to(0.001)
    s.ask("the quota", describe, 1, components=[{"entity_type": "client-id", "match_type": 0, "match": s.name("app")}])
    create("a topic that can't be", 7, *new("bad name"))
    delete("a topic that is not there", 6, "nope")
    grow("a topic that is not there", 3, "nope", 2)
    grow("to fewer partitions", 3, "old", 0)
    create("two at once", 7, *new("first", "second", partitions=3))
    for version in (7, 6):
        create("one more", version, *new("third"))
        create("one more, tried", version, *new("third"), validate_only=True)
        create("one more that can't be", version, *new("old"))
    for version in (5, 4):
        create("one more", version, *new(f"early{version}"))
    grow("more partitions", 3, "old", 2)
    grow("more partitions, tried", 3, "old", 2, validate_only=True)
    for version in (2, 1, 0):
        grow("more partitions", version, "old", 4 - version)
    for version in (6, 5):
        delete("a topic", version, "old")
    for version, name in ((4, "old"), (3, "older")):
        delete("a topic", version, name)
    s.speak_as(s.name("app"), on="app")
    wanted = [{"name": s.name("wanted")}]
    s.ask("a topic that is made when asked for", "Metadata", 12, on="app", topics=wanted, keep=lambda a: a["topics"])
    s.settle()
    s.ask("it was not made", "Metadata", 12, topics=wanted, allow_auto_topic_creation=False, keep=lambda a: a["topics"])
    s.ask("another client makes it", "CreateTopics", 7, topics=new("wanted"), keep=names)
    set_to(None)
    create("without a quota", 7, *new("fourth", partitions=3))
    delete("without a quota", 6, "first")


def credentials(s: Stage) -> None:
    api = "DescribeUserScramCredentials"
    s.ask("of everybody", api, "all", users=None)
    s.ask("of nobody", api, "all", users=[])
    s.ask("of somebody", api, "all", users=[{"name": s.name("ada")}])
    s.ask("twice", api, "all", users=[{"name": s.name("ada")}, {"name": s.name("ada")}])
    s.ask("without a name", api, "all", users=[{"name": ""}])


def features(s: Stage) -> None:
    api = "UpdateFeatures"
    unknown = {"feature": "no.such.feature", "max_version_level": 1}
    s.ask("unknown", api, "all", feature_updates=[unknown])
    s.ask("unknown, tried", api, "1-", feature_updates=[unknown], validate_only=True)
    s.ask("unknown, removed", api, "1-", feature_updates=[unknown | {"max_version_level": 0, "upgrade_type": 2}])
    s.ask("a negative level", api, 2, feature_updates=[unknown | {"max_version_level": -1}])
    s.ask("unknown kind of change", api, 2, feature_updates=[unknown | {"upgrade_type": 7}])
    s.ask("without a name", api, 2, feature_updates=[unknown | {"feature": ""}])
    s.ask("nothing", api, "all", feature_updates=[])
    shared = {"feature": "share.version", "max_version_level": 1}
    s.ask("to where it is", api, "all", feature_updates=[shared])
    s.ask("to where it is, and an unknown one", api, "all", feature_updates=[shared, unknown])
    s.ask(
        "down, tried",
        api,
        "1-",
        feature_updates=[shared | {"max_version_level": 0, "upgrade_type": 2}],
        validate_only=True,
    )


def quorum(s: Stage) -> None:
    api = "DescribeQuorum"

    def brief(answer: dict[str, Any]) -> dict[str, Any]:
        """Whose log is how long, and since when, is each cluster's own; so is where its controllers listen."""
        for topic in answer.get("topics", ()):
            for partition in topic["partitions"]:
                for volatile in ("leader_epoch", "high_watermark"):
                    partition.pop(volatile, None)
                for replica in (*partition.get("current_voters", ()), *partition.get("observers", ())):
                    for name in set(replica) - {"replica_id"}:
                        del replica[name]
                    replica["replica_id"] = "<node>" if replica["replica_id"] == s.node_id else replica["replica_id"]
        for node in answer.get("nodes", ()):
            del node["listeners"]
        return answer

    def of(topic: str, *indexes: int) -> list[dict[str, Any]]:
        return [{"topic_name": topic, "partitions": [{"partition_index": index} for index in indexes]}]

    s.ask("the quorum", api, "all", topics=of("__cluster_metadata", 0), keep=brief)
    s.ask("another partition", api, "all", topics=of("__cluster_metadata", 1), keep=brief)
    s.ask("another topic", api, "all", topics=of(s.name("t"), 0), keep=brief)
    s.ask("both", api, 2, topics=of("__cluster_metadata", 0) + of(s.name("t"), 0), keep=brief)
    s.ask("nothing", api, "all", topics=[], keep=brief)


def transactions(s: Stage) -> None:
    s.ask("list", "ListTransactions", "all")
    s.ask("list what is ongoing", "ListTransactions", "all", state_filters=["Ongoing"])
    s.ask("list an unknown state", "ListTransactions", "all", state_filters=["Ongoing", "Sleeping"])
    s.ask("list of a producer", "ListTransactions", "all", producer_id_filters=[7])
    s.ask("list what lasts", "ListTransactions", "1-", duration_filter=1000)
    s.ask("list by a pattern", "ListTransactions", 2, transactional_id_pattern="a.*")
    s.ask("list by a broken pattern", "ListTransactions", 2, transactional_id_pattern="a(")
    s.ask("describe none", "DescribeTransactions", "all", transactional_ids=[])
    unknown = s.name("x")
    if s.slow:  # Kafka's coordinator of it has a topic to make first
        asked = {"key_type": 1, "coordinator_keys": [unknown]}
        s.until(lambda a: a.coordinators[0].error_code == 0, "FindCoordinator", 4, **asked)
        s.until(
            lambda a: a.transaction_states[0].error_code not in (14, 15, 16),
            "DescribeTransactions",
            transactional_ids=[unknown],
        )
    s.ask("describe an unknown one", "DescribeTransactions", "all", transactional_ids=[unknown])
