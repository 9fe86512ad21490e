"""Groups of every kind, asked as every kind of principal (`principals`)."""

from __future__ import annotations

from typing import Any

from ottla.protocol.apis import ApiKey as K

from ..principals import UNKNOWN_ID, Matrix, of_own
from ..stage import Stage
from . import consumer_groups as consumers
from . import share_groups as shares
from .transactions import Producer
from .unconfigured import UNSUPPORTED_VERSION, set_streams_version

SECURED = True


def groups(s: Stage) -> None:
    m = Matrix(s, "groups", "new", "doomed")
    topics = m.topics()
    for name in ("a.g", "z.g"):
        s.group(name)
        rows = [{"name": topic, "partitions": [{"partition_index": 0, "committed_offset": 1}]} for topic in topics[:2]]
        s.send("OffsetCommit", 8, group_id=s.name(name), generation_id_or_member_epoch=-1, topics=rows)
    Producer(s, "a.tx")
    Producer(s, "z.tx")
    shown, hidden = m.shown("g"), m.hidden("g")
    for kind, (step, short) in enumerate((("groups", "g"), ("transactions", "tx"))):
        m.ask(K.FIND_COORDINATOR, step)(key_type=kind, coordinator_keys=m.four(short)[:2])
    m.ask(K.FIND_COORDINATOR, "one hidden", 3)(key_type=0, key=hidden)
    share_partition = {"key_type": 2, "coordinator_keys": [f"{shown}:AAAAAAAAAAAAAAAAAAAAAA:0"]}
    s.until(lambda answer: answer.coordinators[0].error_code == 0, "FindCoordinator", 6, **share_partition)
    m.ask(K.FIND_COORDINATOR, "of a share partition")(**share_partition)
    member: dict[str, Any] = {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000, "protocol_type": "consumer"}
    member |= {"member_id": "", "protocols": [{"name": "range", "metadata": b"\0\0\0\0\0\0\0\0\0\0"}]}
    m.ask(K.JOIN_GROUP, "a new one")(lambda who: member | {"group_id": s.name(of_own("a.new", who))})
    m.ask(K.JOIN_GROUP, "a hidden one")(**member, group_id=m.hidden("none"))
    of = {"generation_id": 1, "member_id": "m"}
    for step, group in (("granted", shown), ("hidden", hidden)):
        m.ask(K.SYNC_GROUP, step)(group_id=group, protocol_type="consumer", protocol_name="range", **of)
        m.ask(K.HEARTBEAT, step)(group_id=group, **of)
        m.ask(K.LEAVE_GROUP, step)(group_id=group, members=[{"member_id": "m"}])
        rows = [{"name": name, "partitions": [{"partition_index": 0, "committed_offset": 1}]} for name in topics]
        m.ask(K.OFFSET_COMMIT, step, 9)(group_id=group, generation_id_or_member_epoch=-1, topics=rows)
        wanted = [{"name": name, "partition_indexes": [0]} for name in topics]
        m.ask(K.OFFSET_FETCH, f"{step}, once", 7)(group_id=group, topics=wanted)
        m.ask(K.OFFSET_FETCH, f"{step}, all once", 7)(group_id=group, topics=None)
    ids = [s.topic_id(name) for name in topics[:2]] + [UNKNOWN_ID]
    rows = [{"topic_id": each, "partitions": [{"partition_index": 0, "committed_offset": 1}]} for each in ids]
    m.ask(K.OFFSET_COMMIT, "by id")(group_id=shown, generation_id_or_member_epoch=-1, topics=rows)
    wanted = [{"topic_id": each, "partition_indexes": [0]} for each in ids]
    both = [shown, hidden]
    m.ask(K.OFFSET_FETCH, "by id")(groups=[{"group_id": each, "topics": wanted} for each in both])
    m.ask(K.OFFSET_FETCH, "all by id")(groups=[{"group_id": each, "topics": None} for each in both])
    wanted = [{"name": name, "partition_indexes": [0]} for name in topics]
    m.ask(K.OFFSET_FETCH, "by name", 9)(groups=[{"group_id": each, "topics": wanted} for each in both])
    m.ask(K.OFFSET_FETCH, "all by name", 9)(groups=[{"group_id": each, "topics": None} for each in both])
    m.ask(K.DESCRIBE_GROUPS, "four")(groups=m.four("g"), include_authorized_operations=True)
    m.ask(K.LIST_GROUPS, "all", ours=True, keep=groups_that_stay)()
    partitions = [{"partition_index": 0}]
    for step, group in (("hidden", hidden), ("granted", shown)):
        m.ask(K.OFFSET_DELETE, step)(
            group_id=group, topics=[{"name": each, "partitions": partitions} for each in topics]
        )
    m.ask(K.DELETE_GROUPS, "missing ones")(
        lambda who: {"groups_names": [s.name(of_own("a.doomed", who)), m.hidden("x")]}
    )


def groups_that_stay(answer: dict[str, Any]) -> dict[str, Any]:
    """Members that joined and never came back are removed by and by, and their groups with them."""
    answer["groups"] = [each for each in answer.get("groups", []) if each["group_id"] in ("a.g", "z.g")]
    return answer


def consumer_groups(s: Stage) -> None:
    m = Matrix(s, "consumer_groups", "new")
    topics = m.topics()
    for short, subscribed in (("a.c", topics[:1]), ("z.g", topics[:1]), ("a.mixed", topics[:2])):
        group = consumers.consumer_group(s, short)
        answer = s.send(consumers.API, 0, **consumers.joining(group, subscribed))
        assert answer.error_code == 0, answer
    shown, hidden = m.shown("c"), m.hidden("g")
    key = K.CONSUMER_GROUP_HEARTBEAT
    for step, group in (("a member", shown), ("of a hidden group", hidden)):
        m.ask(key, step, keep=consumers.shown)(**consumers.going_on(group, 1, []))

    def join(names: list[str] | None, who: str, **more: Any) -> dict[str, Any]:
        return consumers.joining(s.name(of_own("a.new", who)), names) | more

    m.ask(key, "joins, granted", keep=joined)(lambda who: join(topics[:1], who))
    m.ask(key, "joins, missing", keep=joined)(lambda who: join([m.hidden("none")], who))
    m.ask(key, "joins, hidden too", keep=joined)(lambda who: join(topics[:2], who))
    expression = {"subscribed_topic_regex": f"{s.name('')}.*"}
    m.ask(key, "joins by an expression", 1, keep=joined)(lambda who: join(None, who, member_id="b", **expression))
    asked = [shown, hidden, m.shown("mixed"), m.shown("none"), m.hidden("none")]
    m.ask(K.CONSUMER_GROUP_DESCRIBE, "five", keep=members_counted)(group_ids=asked, include_authorized_operations=True)


def joined(answer: dict[str, Any]) -> dict[str, Any]:
    """Whether: what is assigned, and when, is compared elsewhere."""
    return {"error_code": answer["error_code"]}


def members_counted(answer: dict[str, Any]) -> dict[str, Any]:
    for group in answer["groups"]:
        group["members"] = len(group.get("members", []))
        group["is_known"] = group.pop("group_epoch", 0) > 0
        group.pop("assignment_epoch", None)
    return answer


def share_groups(s: Stage) -> None:
    m = Matrix(s, "share_groups", "new")
    topics = m.topics()
    epochs: dict[str, int] = {}
    for short, subscribed in (("a.g", topics[:1]), ("z.g", topics[:2]), ("a.mixed", topics[:2])):
        group = shares.share_group(s, short)
        epochs[group] = shares.joined(s, group, *subscribed)
    shown, hidden = m.shown("g"), m.hidden("g")
    key = K.SHARE_GROUP_HEARTBEAT
    for step, group in (("a member", shown), ("of a hidden group", hidden)):
        m.ask(key, step, keep=joined)(**shares.joining(group, None, epochs[group]))

    def join(names: list[str], who: str) -> dict[str, Any]:
        return shares.joining(s.name(of_own("a.new", who)), names)

    m.ask(key, "joins, granted", keep=joined)(lambda who: join(topics[:1], who))
    m.ask(key, "joins, missing", keep=joined)(lambda who: join([m.hidden("none")], who))
    m.ask(key, "joins, hidden too", keep=joined)(lambda who: join(topics[:2], who))
    asked = [shown, hidden, m.shown("mixed"), m.shown("none"), m.hidden("none")]
    m.ask(K.SHARE_GROUP_DESCRIBE, "five", keep=members_counted)(group_ids=asked, include_authorized_operations=True)
    ids = [*map(s.topic_id, topics[:2])]  # without an unknown one, on which Kafka fails inside
    how = {"max_wait_ms": 100, "min_bytes": 0, "max_bytes": 1 << 20, "max_records": 10, "batch_size": 10}
    wanted = [{"topic_id": each, "partitions": [{"partition_index": 0}]} for each in ids]
    for step, group in (("granted", m.shown("mixed")), ("hidden", hidden)):
        member = {"group_id": group, "member_id": shares.member(7)}
        m.ask(K.SHARE_FETCH, step, keep=outcomes)(**member, share_session_epoch=0, topics=wanted, **how)
        batches = [{"first_offset": 0, "last_offset": 0, "acknowledge_types": [1]}]
        rows = [
            {"topic_id": each, "partitions": [{"partition_index": 0, "acknowledgement_batches": batches}]}
            for each in ids
        ]
        m.ask(K.SHARE_ACKNOWLEDGE, step, keep=outcomes)(**member, share_session_epoch=1, topics=rows)
        some = [{"topic_name": each, "partitions": [0]} for each in topics]
        group = hidden if group == hidden else shown
        both = [{"group_id": group, "topics": some}, {"group_id": group, "topics": None}]
        for what, one in zip(("named", "all"), both, strict=True):
            m.ask(K.DESCRIBE_SHARE_GROUP_OFFSETS, f"{step}, {what}", keep=without_starts)(groups=[one])
    # (the rest works on a group without members)
    for short in ("a.tx", "z.tx"):
        shares.share_group(s, short)
    for step, group in (("granted", m.shown("tx")), ("hidden", m.hidden("tx"))):
        starts = [{"topic_name": each, "partitions": [{"partition_index": 0, "start_offset": 0}]} for each in topics]
        m.ask(K.ALTER_SHARE_GROUP_OFFSETS, step, keep=in_order)(group_id=group, topics=starts)
        m.ask(K.DELETE_SHARE_GROUP_OFFSETS, step, keep=in_order)(
            group_id=group, topics=[{"topic_name": each} for each in topics]
        )


def outcomes(answer: dict[str, Any]) -> dict[str, Any]:
    """The errors of a request and of its partitions: what is acquired is compared elsewhere."""
    parts = [each for topic in answer.get("responses", []) for each in topic["partitions"]]
    errors = {each["error_code"] for each in parts} - {"NONE"}
    return {"error_code": answer["error_code"], "partitions": sorted(errors)}


def in_order(answer: dict[str, Any]) -> dict[str, Any]:
    answer["responses"] = sorted(answer.get("responses", []), key=lambda each: each["topic_name"])
    return answer


def without_starts(answer: dict[str, Any]) -> dict[str, Any]:
    for group in answer["groups"]:
        for topic in group.get("topics", []):
            topic["partitions"] = len(topic["partitions"])
    return answer


def streams_groups(s: Stage) -> None:
    """With the feature streams.version at 0, at which nobody is asked for rights."""
    m = Matrix(s, "streams_groups")
    if s.slow:
        set_streams_version(s, 0)
        asked = {"group_id": m.shown("g"), "member_id": "m"}
        s.until(lambda answer: answer.error_code == UNSUPPORTED_VERSION, "StreamsGroupHeartbeat", **asked)
    for step, group in (("granted", m.shown("g")), ("hidden", m.hidden("g"))):
        m.ask(K.STREAMS_GROUP_HEARTBEAT, step)(group_id=group, member_id="m")
    m.ask(K.STREAMS_GROUP_DESCRIBE, "two")(group_ids=[m.shown("g"), m.hidden("g")])
    if s.slow:
        set_streams_version(s, 1)


def share_state(s: Stage) -> None:
    """What nodes ask each other about share groups."""
    m = Matrix(s, "share_state")
    topic = {"topic_id": s.topic_id(m.topics()[0])}
    s.until(
        lambda answer: answer.coordinators[0].error_code == 0,
        "FindCoordinator",
        6,
        key_type=2,
        coordinator_keys=[m.shown("g") + ":AAAAAAAAAAAAAAAAAAAAAA:0"],
    )
    for key, part in (
        (K.INITIALIZE_SHARE_GROUP_STATE, {"state_epoch": 1}),
        (K.READ_SHARE_GROUP_STATE, {"leader_epoch": 0}),
        (
            K.WRITE_SHARE_GROUP_STATE,
            {"state_epoch": 1, "leader_epoch": 0, "start_offset": 0, "delivery_complete_count": 0},
        ),
        (K.READ_SHARE_GROUP_STATE_SUMMARY, {"leader_epoch": 0}),
        (K.DELETE_SHARE_GROUP_STATE, {}),
    ):
        m.ask(key, "one")(group_id=m.shown("g"), topics=[topic | {"partitions": [{"partition": 0} | part]}])
