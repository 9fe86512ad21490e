"""What only several nodes can be asked: where replicas are put and moved to, who leads, what the wrong node answers.

Nodes have the ids 1 to 3 on both sides, and are told apart: ask a node by `on="node 2"`.
"""

from __future__ import annotations

from typing import Any

from ..batches import batch
from ..stage import Stage, fetch, produce

NODES = 3
BROKER, TOPIC = 4, 2


def placed(s: Stage, short: str, *replicas: list[int], configs: dict[str, str] | None = None) -> str:
    """A topic whose partitions are on these nodes, ready to be used."""
    name = s.name(short)
    (made,) = s.send(
        "CreateTopics", topics=[asked_for(name, *replicas, configs=configs or {})], timeout_ms=30000
    ).topics
    assert made.error_code == 0, made
    s.ready_everywhere(name, len(replicas))
    return name


def asked_for(name: str, *replicas: list[int], **more: Any) -> dict[str, Any]:
    assigned = [{"partition_index": index, "broker_ids": nodes} for index, nodes in enumerate(replicas)]
    configs = [{"name": key.replace("_", "."), "value": value} for key, value in more.pop("configs", {}).items()]
    return {
        "name": name,
        "num_partitions": -1,
        "replication_factor": -1,
        "assignments": assigned,
        "configs": configs,
    } | more


def sorted_in_sync(answer: dict[str, Any]) -> dict[str, Any]:
    """Who is in sync, without the order in which they came."""
    for topic in answer["topics"]:
        for part in topic.get("partitions", ()):
            if "isr_nodes" in part:
                part["isr_nodes"].sort()
    return answer


def place(s: Stage) -> None:
    api, at = "CreateTopics", iter(range(100))

    def create(step: str, *replicas: list[int], **more: Any) -> str:
        name = s.name(f"t{next(at)}")
        s.ask(step, api, topics=[asked_for(name, *replicas, **more)], timeout_ms=30000, keep=without_configs)
        return name

    good = create("by hand", [1, 2], [2, 3], [3, 1])
    s.ready_everywhere(good, 3)
    s.ask(
        "where it is", "Metadata", "8-", topics=[{"name": good}], keep=lambda a: sorted_in_sync({"topics": a["topics"]})
    )
    s.ask("where it is", "DescribeTopicPartitions", topics=[{"name": good}], keep=sorted_in_sync)
    create("on a node that is not there", [1, 9])
    create("on a negative node", [-1])
    create("twice on a node", [1, 1])
    create("on nobody", [])
    create("one of two on nobody", [1], [])
    create("with different numbers of replicas", [1], [2, 3])
    create("with a number of partitions", [1], num_partitions=1)
    create("with a number of replicas", [1], replication_factor=1)
    for step, wrong in (
        ("from partition 1 on", [{"partition_index": 1, "broker_ids": [1]}]),
        ("with a gap", [{"partition_index": index, "broker_ids": [1]} for index in (0, 2)]),
        ("with a partition twice", [{"partition_index": 0, "broker_ids": [each]} for each in (1, 2)]),
    ):
        create(step, assignments=wrong)
    for factor in (0, 4, -2, 3, -1):
        create(f"{factor} replicas", num_partitions=1, replication_factor=factor)
    create("4 replicas of no partitions", num_partitions=0, replication_factor=4)
    create("more in sync than there are", [1, 2], configs={"min_insync_replicas": "3"})
    s.ask("only looked at", api, topics=[asked_for(s.name("v"), [1, 9])], validate_only=True, keep=without_configs)
    s.ask(
        "only looked at, good", api, topics=[asked_for(s.name("v"), [3, 1])], validate_only=True, keep=without_configs
    )


def without_configs(answer: dict[str, Any]) -> dict[str, Any]:
    for topic in answer["topics"]:
        topic.pop("configs", None)
    return answer


def grow(s: Stage) -> None:
    api = "CreatePartitions"
    name = placed(s, "t", [1, 2])

    def more(step: str, count: int, assigned: list[list[int]] | None, topic: str = name) -> None:
        wanted = None if assigned is None else [{"broker_ids": nodes} for nodes in assigned]
        s.ask(step, api, topics=[{"name": topic, "count": count, "assignments": wanted}], timeout_ms=30000)

    more("on a node that is not there", 2, [[1, 9]])
    more("twice on a node", 2, [[1, 1]])
    more("on nobody", 2, [[]])
    more("with too many replicas", 2, [[1, 2, 3]])
    more("with too few replicas", 2, [[1]])
    more("with too few assignments", 3, [[1, 2]])
    more("with too many assignments", 2, [[1, 2], [2, 3]])
    more("with no assignments", 2, [])
    more("by hand", 3, [[2, 3], [3, 1]])
    s.ready_everywhere(name, 3)
    s.ask("where it is", "Metadata", topics=[{"name": name}], keep=lambda a: sorted_in_sync({"topics": a["topics"]}))


def elections(s: Stage) -> None:
    api, move = "ElectLeaders", "AlterPartitionReassignments"
    name = placed(s, "t", [1, 2], [2, 3])
    where = [{"topic": name, "partitions": [0, 1]}]
    s.ask("they lead already", api, "all", topic_partitions=where)
    s.ask("another order", move, topics=to(name, (0, [2, 1]), (1, [3, 2])))
    s.until(lambda a: not a.topics, "ListPartitionReassignments", topics=[{"name": name, "partition_indexes": [0, 1]}])
    s.settle()
    s.ask("the leaders stay", "Metadata", topics=[{"name": name}], keep=leaders)
    s.ask("unclean is not needed", api, election_type=1, topic_partitions=where)
    s.ask("one", api, topic_partitions=[{"topic": name, "partitions": [0]}])
    s.ask("the other one of two", api, topic_partitions=where)
    s.ready_everywhere(name, 2)
    s.ask("they lead", "Metadata", topics=[{"name": name}], keep=leaders)
    s.ask("one that is not there", api, topic_partitions=[{"topic": name, "partitions": [0, 9]}])


def leaders(answer: dict[str, Any]) -> Any:
    """By partition: who leads, in which epoch."""
    (topic,) = answer["topics"]
    return [[part[key] for key in ("partition_index", "leader_id", "leader_epoch")] for part in topic["partitions"]]


def to(name: str, *targets: tuple[int, list[int] | None]) -> list[dict[str, Any]]:
    return [{"name": name, "partitions": [{"partition_index": at, "replicas": nodes} for at, nodes in targets]}]


def reassignments(s: Stage) -> None:
    api, listing = "AlterPartitionReassignments", "ListPartitionReassignments"
    name = placed(s, "t", [1, 2], [2, 3])
    s.append(name, batch("a"))

    def look(step: str) -> None:
        s.until(lambda a: not a.topics, listing, topics=[{"name": name, "partition_indexes": [0, 1]}])
        s.ready_everywhere(name, 2)
        s.ask(step, "Metadata", topics=[{"name": name}], keep=lambda a: sorted_in_sync({"topics": a["topics"]}))

    s.ask("where it is", api, "all", topics=to(name, (0, [1, 2])))
    s.ask("to a node that is not there", api, topics=to(name, (0, [1, 9])))
    s.ask("twice the same", api, topics=to(name, (0, [2, 2])))
    s.ask("to nobody", api, topics=to(name, (0, [])))
    s.ask("to a negative node", api, topics=to(name, (0, [1, -2])))
    s.ask("to more, the number kept", api, 1, topics=to(name, (0, [1, 2, 3])), allow_replication_factor_change=False)
    s.ask("to fewer, the number kept", api, 1, topics=to(name, (0, [1])), allow_replication_factor_change=False)
    s.ask("cancel nothing", api, topics=to(name, (0, None)))
    s.ask("good and bad", api, topics=to(name, (0, [3, 2]), (1, [9]), (7, [1])))
    look("one has moved")
    s.ask("another order", api, topics=to(name, (1, [3, 2])))
    look("and the leader is who it was")
    s.ask("to one", api, topics=to(name, (0, [2]), (1, [2])))
    look("the leader is who is left")
    s.ask("to three", api, topics=to(name, (0, [1, 2, 3])))
    look("all have it")
    s.ask(
        "what was written is there",
        "Fetch",
        12,
        on="node 2",
        **fetch(name),
        keep=lambda a: a["responses"][0]["partitions"][0].get("records"),
    )
    s.ask("one partition twice", api, topics=to(name, (0, [1]), (0, [2])))
    look("the later one counts")
    s.ask("nothing is moved", listing, topics=None, ours=True)
    s.ask("of one that is not there", listing, topics=[{"name": name, "partition_indexes": [0, 9]}])


def the_wrong_node(s: Stage) -> None:
    """What is asked of a node that does not lead."""
    name = placed(s, "t", [1, 2])
    s.append(name, batch("a"))
    following = fetch(name, topic_id=s.topic_id(name))
    s.until(lambda a: a.responses[0].partitions[0].high_watermark == 1, "Fetch", 13, on="node 2", **following)
    for node in (2, 3):
        on, whose = f"node {node}", "a follower" if node == 2 else "a stranger"
        s.ask(f"produce at {whose}", "Produce", "8-12", on=on, **produce(name, batch("b")))
        s.ask(f"fetch at {whose}, consumers may not", "Fetch", "4-10", on=on, **fetch(name))
        s.ask(f"fetch at {whose}, in an older epoch", "Fetch", "9-12", on=on, **fetch(name, current_leader_epoch=7))
        newer = fetch(name, topic_id=s.topic_id(name), current_leader_epoch=7)
        s.ask(f"fetch at {whose}, in an older epoch, by id", "Fetch", "13-", on=on, **newer)
        newer = fetch(name, topic_id=s.topic_id(name))
        s.ask(f"fetch at {whose}, by id", "Fetch", "13-", on=on, **newer, keep=without_ports)
        part = {"partition_index": 0, "timestamp": -1}
        s.ask(
            f"where {whose} ends",
            "ListOffsets",
            "1-",
            on=on,
            replica_id=-1,
            topics=[{"name": name, "partitions": [part]}],
        )
        s.ask(
            f"an epoch's end at {whose}",
            "OffsetForLeaderEpoch",
            on=on,
            replica_id=-1,
            topics=[{"topic": name, "partitions": [{"partition": 0, "leader_epoch": 0}]}],
        )
        deleting = [{"name": name, "partitions": [{"partition_index": 0, "offset": 1}]}]
        s.ask(f"delete records at {whose}", "DeleteRecords", on=on, topics=deleting, timeout_ms=1000)
        asked = [{"name": name, "partition_indexes": [0]}]
        s.ask(f"producers of {whose}", "DescribeProducers", on=on, topics=asked)
    s.ask("too few are there for what it wants", "CreateTopics", keep=without_configs, **wanting(s, "3"))
    few = s.name("few")
    s.ready_everywhere(few, 1)
    s.ask("nothing is written to it", "Produce", 9, on="node 1", **produce(few, batch("a")))
    s.ask("but without waiting", "Produce", 9, on="node 1", **produce(few, batch("a"), acks=1))


def without_ports(answer: dict[str, Any]) -> dict[str, Any]:
    for node in answer.get("node_endpoints", ()):
        node.pop("host", None)
    return answer


def wanting(s: Stage, in_sync: str) -> dict[str, Any]:
    """A topic of two copies of which so many must be in sync."""
    return {"topics": [asked_for(s.name("few"), [1, 2], configs={"min_insync_replicas": in_sync})], "timeout_ms": 30000}


def another_node(s: Stage) -> None:
    """Disks of nodes, asked of each other; coordinators and controllers."""
    name = placed(s, "t", [2, 3], [3, 1])
    for node in (1, 2, 3):
        s.ask(f"what {node} has", "DescribeLogDirs", on=f"node {node}", topics=None, ours=True, keep=places)
        s.ask(
            f"two of {name and 't'} at {node}",
            "DescribeLogDirs",
            on=f"node {node}",
            topics=[{"topic": name, "partitions": [0, 1]}],
            keep=places,
        )
    s.ask("the nodes", "DescribeCluster", "all", keep=nodes)
    s.ask("the nodes, fenced ones too", "DescribeCluster", 2, include_fenced_brokers=True, keep=nodes)
    s.ask("the nodes", "Metadata", "all", topics=[], keep=nodes)
    group, coordinator = s.name("g"), coordinated(s)
    for node in (1, 2, 3):
        keys = {"key_type": 0, "coordinator_keys": [group, s.name("h")]}
        s.ask("a coordinator", "FindCoordinator", on=f"node {node}", **keys, keep=found)
    other = f"node {next(node for node in (1, 2, 3) if node != coordinator)}"
    groups = [{"group_id": group, "topics": []}]
    for who, on in (("its coordinator", f"node {coordinator}"), ("another node", other)):
        s.ask(f"offsets at {who}", "OffsetFetch", "8-9", on=on, groups=groups)
        s.ask(f"heartbeat at {who}", "Heartbeat", on=on, group_id=group, generation_id=1, member_id="m")
        s.ask(f"the group at {who}", "DescribeGroups", "0-5", on=on, groups=[group])
        s.ask(f"leave at {who}", "LeaveGroup", on=on, group_id=group, members=[{"member_id": "m"}])


def coordinated(stage: Stage) -> int:
    """The node that coordinates the group `g` and has begun to."""
    keys = {"key_type": 0, "coordinator_keys": [stage.name("g")]}
    ready = stage.until(lambda a: a.coordinators[0].error_code == 0, "FindCoordinator", 4, **keys)
    node_id = int(ready.coordinators[0].node_id)
    groups = [{"group_id": stage.name("g"), "topics": []}]
    stage.until(lambda a: not a.groups[0].error_code, "OffsetFetch", 8, on=f"node {node_id}", groups=groups)
    return node_id


def transactions_elsewhere(s: Stage) -> None:
    """What a node says of transactions and of groups whose members it assigns to, where it coordinates neither."""
    name, transactional_id, group = placed(s, "t", [2], [3]), s.name("tx"), s.name("g")
    begin: dict[str, Any] = {"transactional_id": transactional_id, "transaction_timeout_ms": 60_000}
    keys = {"key_type": 1, "coordinator_keys": [transactional_id]}
    ready = s.until(lambda a: a.coordinators[0].error_code == 0, "FindCoordinator", 4, **keys)
    at = int(ready.coordinators[0].node_id)
    s.send("InitProducerId", 5, on=f"node {at}")  # so that its producer id is not 0
    it = s.until(lambda a: a.error_code == 0, "InitProducerId", 5, on=f"node {at}", **begin)
    whose = {"transactional_id": transactional_id, "producer_id": it.producer_id, "producer_epoch": it.producer_epoch}
    other = f"node {at % 3 + 1}"
    topics = [{"name": name, "partitions": [0]}]
    s.ask("begin", "InitProducerId", "all", on=other, **begin)
    s.ask("add", "AddPartitionsToTxn", "0-3", on=other, v3_and_below_topics=topics,
          **{f"v3_and_below_{field}": value for field, value in whose.items()})  # fmt: skip
    for verify in (True, False):
        asked = [whose | {"verify_only": verify, "topics": topics}]
        s.ask(f"asked by a node, verify {verify}", "AddPartitionsToTxn", "4-5", on=other, transactions=asked)
    s.ask("add a group", "AddOffsetsToTxn", "all", on=other, **whose, group_id=group)
    s.ask("end", "EndTxn", "all", on=other, **whose, committed=True)
    s.ask("describe", "DescribeTransactions", on=other, transactional_ids=[transactional_id])
    s.ask("list", "ListTransactions", "all", on=other, producer_id_filters=[it.producer_id])
    s.ask("list at its coordinator", "ListTransactions", "all", on=f"node {at}", producer_id_filters=[it.producer_id])
    other = f"node {coordinated(s) % 3 + 1}"
    topic_id = s.topic_id(name)
    part = {"partition_index": 0, "committed_offset": 5}
    of_one = {"name": name, "partitions": [part]}
    s.ask("commit in it", "TxnOffsetCommit", "all", on=other, **whose, group_id=group, topics=[of_one])
    member = {"group_id": group, "member_id": "m", "generation_id_or_member_epoch": 1}
    s.ask("commit", "OffsetCommit", "2-", on=other, **member, topics=[of_one | {"topic_id": topic_id}])
    joining = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": [name], "topic_partitions": []}
    s.ask("join", "ConsumerGroupHeartbeat", "all", on=other, group_id=group, member_id="m", **joining)
    s.ask("leave", "ConsumerGroupHeartbeat", "all", on=other, group_id=group, member_id="m", member_epoch=-1)
    s.ask("describe the group", "ConsumerGroupDescribe", "all", on=other, group_ids=[group])
    s.ask("delete it", "DeleteGroups", on=other, groups_names=[group])
    marker = {
        "producer_id": it.producer_id,
        "producer_epoch": it.producer_epoch,
        "transaction_result": False,
        "topics": [{"name": name, "partition_indexes": [0, 1]}],
        "coordinator_epoch": 0,
    }
    s.ask("markers", "WriteTxnMarkers", "1-2", on="node 2", markers=[marker])
    s.ask("producers", "DescribeProducers", on="node 2", topics=[{"name": name, "partition_indexes": [0, 1]}])


def configs_of_nodes(s: Stage) -> None:
    for asked in ("1", "2", "3", "9", "x", ""):
        resource = {"resource_type": BROKER, "resource_name": asked, "configuration_keys": ["log.retention.ms"]}
        s.ask(
            f"configs of {asked or 'all'} at 1", "DescribeConfigs", on="node 1", resources=[resource], keep=only_errors
        )
        change = [{"name": "log.retention.ms", "config_operation": 0, "value": "7200000"}]
        altered = {"resource_type": BROKER, "resource_name": asked, "configs": change}
        s.ask(f"change those of {asked or 'all'} at 1", "IncrementalAlterConfigs", on="node 1", resources=[altered])
        back = altered | {"configs": [{"name": "log.retention.ms", "config_operation": 1, "value": None}]}
        s.send("IncrementalAlterConfigs", on=f"node {asked if asked in ('1', '2', '3') else 1}", resources=[back])


def only_errors(answer: dict[str, Any]) -> Any:
    return [[each["error_code"], bool(each.get("configs"))] for each in answer["results"]]


def places(answer: dict[str, Any]) -> Any:
    return [
        [topic["name"], part["partition_index"]]
        for result in answer["results"]
        for topic in result.get("topics", ())
        for part in topic["partitions"]
    ]


def nodes(answer: dict[str, Any]) -> Any:
    shown = [{key: each[key] for key in each if key not in ("host", "port")} for each in answer["brokers"]]
    controller = answer.get("controller_id")
    return [
        sorted(shown, key=lambda each: int(each.get("broker_id") or each["node_id"])),
        controller in (None, 1, 2, 3),
    ]


def found(answer: dict[str, Any]) -> Any:
    return [[each["key"], each.get("error_code"), each["node_id"] in (1, 2, 3)] for each in answer["coordinators"]]
