"""What two nodes answer while the third of them is dead, and all three once it is back.

Its process is killed, so it says nothing to anybody; each side is asked once its controller has taken it out.
"""

from __future__ import annotations

from typing import Any

from ..batches import batch
from ..stage import Stage, fetch, produce
from .three_nodes import BROKER, asked_for, found, leaders, nodes, only_errors, placed, places, sorted_in_sync, to

NODES = 3
KILLS = True
DEAD = 3


def one_is_gone(s: Stage) -> None:
    kept = {"retention_ms": "-1"}  # what is written is years old
    led = placed(s, "led", [3, 1, 2], [1, 2, 3], configs=kept)
    alone = placed(s, "alone", [3], [1])
    strict = placed(s, "strict", [1, 2, 3], configs=kept | {"min_insync_replicas": "3"})
    pair = placed(s, "pair", [1, 2], [2, 1], configs=kept)
    for name in (led, strict, pair):
        s.append(name, batch("a"), batch("b"))
    groups = [s.name(f"g{number}") for number in range(8)]
    s.until(all_found, "FindCoordinator", key_type=0, coordinator_keys=groups)
    with s.without(DEAD):
        for name in (led, strict):
            s.until_in_sync(name, [1, 2])
        nodes_and_topics(s, led, alone, strict)
        coordinators(s, groups)
        records(s, led, alone, strict)
        disks(s, led, alone)
        configs(s, DEAD)
        elections(s, led, alone)
        creations(s, DEAD)
        growth(s, pair)
        moves(s, led, pair)
    for name, partitions in ((pair, 5), (led, 2), (strict, 1), (s.name("three"), 2), (s.name("by-hand"), 2)):
        s.ready_everywhere(name, partitions)
    back(s, led, alone, strict, pair)
    coordinators(s, groups, "all there: ")


def nodes_and_topics(s: Stage, *names: str) -> None:
    s.ask("the nodes", "DescribeCluster", "all", keep=nodes)
    s.ask("the nodes, fenced ones too", "DescribeCluster", 2, include_fenced_brokers=True, keep=nodes)
    s.until(lambda a: len(a.brokers) == 2, "Metadata", topics=[])
    s.ask("the nodes to go to", "Metadata", "all", topics=[], keep=nodes)
    asked = [{"name": name} for name in names]
    for on in ("node 1", "node 2"):
        s.ask("the topics", "Metadata", "5-", on=on, topics=asked, keep=topics_of)
        s.ask("the topics", "DescribeTopicPartitions", on=on, topics=asked, keep=topics_of)


def no_longer_listed(answer: Any) -> bool:
    """Kafka lists a dead node until its session has ended, Ottla as long although it missed it before."""
    return DEAD not in [each.node_id for each in answer.brokers]


def topics_of(answer: dict[str, Any]) -> dict[str, Any]:
    """The topics alone, in an order of the replicas in sync that says nothing."""
    return sorted_in_sync({"topics": answer["topics"]})


def coordinators(s: Stage, groups: list[str], when: str = "") -> None:
    """Who coordinates the groups: nobody that is dead."""
    keys = {"key_type": 0, "coordinator_keys": groups}
    s.until(all_found, "FindCoordinator", **keys)
    for node in (1, 2):
        keep = found if when else not_the_dead
        s.ask(f"{when}coordinators", "FindCoordinator", on=f"node {node}", **keys, keep=keep)


def all_found(answer: Any) -> bool:
    return not any(each.error_code for each in answer.coordinators)


def not_the_dead(answer: dict[str, Any]) -> Any:
    return [[*each, DEAD not in [row["node_id"] for row in answer["coordinators"]]] for each in found(answer)]


def records(s: Stage, led: str, alone: str, strict: str) -> None:
    leader = f"node {s.leader_of(led)}"
    other = "node 2" if leader == "node 1" else "node 1"
    s.ask("produce to all in sync", "Produce", 9, on=leader, **produce(led, batch("c")))
    s.ask("produce at a follower", "Produce", 9, on=other, **produce(led, batch("c")))
    s.ask("produce where three must be in sync", "Produce", "8-9", on="node 1", **produce(strict, batch("c")))
    s.ask("and without waiting", "Produce", 9, on="node 1", **produce(strict, batch("c"), acks=1))
    s.ask("what is to be read of it", "Fetch", 12, on="node 1", **fetch(strict))
    s.ask("produce to one without a leader", "Produce", "8-12", on="node 1", **produce(alone, batch("c")))
    s.ask("fetch", "Fetch", 12, on=leader, **fetch(led))
    s.ask("fetch of one without a leader", "Fetch", "4-12", on="node 1", **fetch(alone))
    for name, on in ((led, leader), (strict, "node 1"), (alone, "node 1")):
        for timestamp in (-1, -2, -3):
            part = {"partition_index": 0, "timestamp": timestamp}
            asked = [{"name": name, "partitions": [part]}]
            s.ask(f"offset {timestamp} of {s.short(name)}", "ListOffsets", "7-", on=on, replica_id=-1, topics=asked)
        for epoch in (0, 1, 7):
            part = {"partition": 0, "leader_epoch": epoch}
            s.ask(
                f"the end of epoch {epoch} of {s.short(name)}",
                "OffsetForLeaderEpoch",
                on=on,
                replica_id=-1,
                topics=[{"topic": name, "partitions": [part]}],
            )


def disks(s: Stage, *names: str) -> None:
    asked = [{"topic": name, "partitions": [0, 1]} for name in names]
    for node in (1, 2):
        s.ask(f"what {node} has", "DescribeLogDirs", on=f"node {node}", topics=asked, keep=places)


def configs(s: Stage, dead: int) -> None:
    asked = {"resource_type": BROKER, "resource_name": str(dead), "configuration_keys": ["log.retention.ms"]}
    s.ask("configs of the dead node", "DescribeConfigs", on="node 1", resources=[asked], keep=only_errors)
    for value, only in (("7200000", True), ("x", False), ("7200000", False)):
        change = [{"name": "log.retention.ms", "config_operation": 0, "value": value}]
        s.ask(
            f"change those of the dead node to {value}",
            "IncrementalAlterConfigs",
            on="node 1",
            validate_only=only,
            resources=[{"resource_type": BROKER, "resource_name": str(dead), "configs": change}],
        )


def elections(s: Stage, led: str, alone: str) -> None:
    for election, kind in ((0, "preferred"), (1, "unclean")):
        for name in (led, alone):
            asked = [{"topic": name, "partitions": [0, 1]}]
            s.ask(f"{kind} leaders of {s.short(name)}", "ElectLeaders", election_type=election, topic_partitions=asked)


def created(answer: dict[str, Any]) -> dict[str, Any]:
    for topic in answer["topics"]:
        topic.pop("configs", None)
    return answer


def creations(s: Stage, dead: int) -> None:
    def create(step: str, *replicas: list[int], **more: Any) -> str:
        name = s.name(step.replace(" ", "-"))
        s.ask(step, "CreateTopics", topics=[asked_for(name, *replicas, **more)], timeout_ms=30000, keep=created)
        return name

    three = create("three", num_partitions=2, replication_factor=3)
    create("four", num_partitions=1, replication_factor=4)
    by_hand = create("by hand", [dead, 1, 2], [1, 2, dead])
    create("only the dead", [dead])
    create("one of two only the dead", [1], [dead])
    for name in (three, by_hand):
        s.until_in_sync(name, [1, 2])
    s.ask("the topic of three", "Metadata", topics=[{"name": three}], keep=who)
    s.ask("the topic by hand", "Metadata", topics=[{"name": by_hand}], keep=topics_of)
    s.ask("the topic by hand", "DescribeTopicPartitions", topics=[{"name": by_hand}], keep=topics_of)
    two = create("two", num_partitions=6, replication_factor=2)
    s.until(lambda a: not a.topics[0].error_code, "Metadata", topics=[{"name": two}])
    s.ask("the topic of two", "Metadata", topics=[{"name": two}], keep=led_by_the_living)


def who(answer: dict[str, Any]) -> Any:
    """Replicas and those in sync, by partition, sorted."""
    (topic,) = answer["topics"]
    return [[sorted(part["replica_nodes"]), sorted(part["isr_nodes"])] for part in topic["partitions"]]


def led_by_the_living(answer: dict[str, Any]) -> Any:
    (topic,) = answer["topics"]
    return [part.get("leader_id") in (1, 2) for part in topic["partitions"]]


def growth(s: Stage, pair: str) -> None:
    def more(step: str, count: int, *assigned: list[int]) -> None:
        wanted = [{"broker_ids": each} for each in assigned] or None
        s.ask(
            step,
            "CreatePartitions",
            topics=[{"name": pair, "count": count, "assignments": wanted}],
            timeout_ms=30000,
        )

    more("grow onto the dead and another", 3, [3, 1])
    more("grow onto the dead", 4, [3, 3])
    more("grow by whoever is there", 5)
    s.until(lambda a: len(a.topics[0].partitions) == 5, "Metadata", topics=[{"name": pair}])
    s.settle()
    s.ask("it has grown", "Metadata", topics=[{"name": pair}], keep=lambda a: topics_of(first_of(a, 3)))
    s.ask("it has grown", "Metadata", topics=[{"name": pair}], keep=led_by_the_living)


def first_of(answer: dict[str, Any], partitions: int) -> dict[str, Any]:
    for topic in answer["topics"]:
        topic["partitions"] = topic["partitions"][:partitions]
    return answer


def moves(s: Stage, led: str, pair: str) -> None:
    api, listing = "AlterPartitionReassignments", "ListPartitionReassignments"
    s.ask("move onto the dead", api, topics=to(pair, (0, [3, 2])))
    s.ask("move to the dead alone", api, topics=to(pair, (1, [3])))
    s.ask("what is being moved", listing, topics=[{"name": pair, "partition_indexes": [0, 1]}])
    wanted = [{1, 2, 3}, {1, 2, 3}]
    s.until(
        lambda a: [set(part.replica_nodes) for part in a.topics[0].partitions[:2]] == wanted,
        "Metadata",
        topics=[{"name": pair}],
    )
    s.ask("it has not moved", "Metadata", topics=[{"name": pair}], keep=lambda a: topics_of(first_of(a, 2)))
    s.ask("cancel one", api, topics=to(pair, (1, None)))
    s.ask("what is still being moved", listing, topics=[{"name": pair, "partition_indexes": [0, 1]}])
    s.ask("move away from the dead", api, topics=to(led, (1, [1, 2])))
    s.until(lambda a: not a.topics, listing, topics=[{"name": led, "partition_indexes": [1]}])
    s.until(lambda a: all(3 not in each.replica_nodes for each in a.topics[0].partitions if each.partition_index == 1),
            "Metadata", topics=[{"name": led}])  # fmt: skip
    s.settle()
    s.ask("it has moved", "Metadata", topics=[{"name": led}], keep=topics_of)


def back(s: Stage, led: str, alone: str, strict: str, pair: str) -> None:
    listing = "ListPartitionReassignments"
    s.until(lambda a: not a.topics, listing, topics=[{"name": pair, "partition_indexes": [0, 1]}])
    s.ready_everywhere(alone, 2)
    s.settle()
    s.ask("all there: the nodes", "DescribeCluster", keep=nodes)
    for name in (alone, strict, pair):
        s.ask(
            f"all there: {s.short(name)}",
            "Metadata",
            topics=[{"name": name}],
            keep=lambda a: topics_of(first_of(a, 3)),
        )
    asked = [{"topic": led, "partitions": [0]}]
    s.ask("all there: preferred leaders", "ElectLeaders", topic_partitions=asked)
    s.until(lambda a: a.topics[0].partitions[0].leader_id == DEAD, "Metadata", topics=[{"name": led}])
    s.ready_everywhere(led, 2)
    s.ask("all there: who leads", "Metadata", topics=[{"name": led}], keep=leaders)
    s.ask("all there: what is read", "Fetch", 12, on=f"node {DEAD}", **fetch(led))
    s.ask("all there: three in sync", "Produce", 9, on="node 1", **produce(strict, batch("d")))
    s.ask("all there: what was not waited for", "Fetch", 12, on="node 1", **fetch(strict))
    config = {"resource_type": BROKER, "resource_name": str(DEAD), "configuration_keys": ["log.retention.ms"]}
    s.ask(
        "all there: its configs",
        "DescribeConfigs",
        1,
        on=f"node {DEAD}",
        resources=[config],
        keep=lambda a: [[each["name"], each["value"]] for each in a["results"][0]["configs"]],
    )
    undo = [{"name": "log.retention.ms", "config_operation": 1, "value": None}]
    resource = {"resource_type": BROKER, "resource_name": str(DEAD), "configs": undo}
    s.send("IncrementalAlterConfigs", on=f"node {DEAD}", resources=[resource])
