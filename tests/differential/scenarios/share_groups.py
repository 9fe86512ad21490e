"""Share groups (KIP-932): membership, sessions, acquiring and acknowledging, offsets, the share coordinator's state."""

from __future__ import annotations

import base64
import uuid
from typing import Any

from tests.harness.waiting import soon

from ..batches import batch
from ..stage import Pending, Stage

GAP, ACCEPT, RELEASE, REJECT, RENEW = 0, 1, 2, 3, 4
GROUP = 32


def member(n: int = 1) -> str:
    """A member id as share clients make them: a Uuid in Kafka's own spelling."""
    return base64.urlsafe_b64encode(uuid.UUID(int=n).bytes).rstrip(b"=").decode()


def share_group(s: Stage, short: str = "sg", **configs: str) -> str:
    """A group that begins at the earliest record."""
    name = s.group(short)
    wanted = {"share.auto.offset.reset": "earliest"} | {k.replace("_", "."): v for k, v in configs.items()}
    changes = [{"name": k, "config_operation": 0, "value": v} for k, v in wanted.items()]
    answer = s.send(
        "IncrementalAlterConfigs", 1, resources=[{"resource_type": GROUP, "resource_name": name, "configs": changes}]
    )
    assert answer.responses[0].error_code == 0, answer
    s.settle()
    return name


def joining(group: str, topics: list[str] | None, epoch: int = 0, who: int = 1) -> dict[str, Any]:
    return {"group_id": group, "member_id": member(who), "member_epoch": epoch, "subscribed_topic_names": topics}


def joined(s: Stage, group: str, *topics: str, who: int = 1) -> int:
    """Be a member with an assignment; the epoch."""
    answer = s.send("ShareGroupHeartbeat", 1, **joining(group, list(topics), who=who))
    assert answer.error_code == 0, answer

    def is_assigned() -> bool:
        nonlocal answer
        if answer.assignment is not None and answer.assignment.topic_partitions:
            return True
        answer = s.send("ShareGroupHeartbeat", 1, **joining(group, None, answer.member_epoch, who))
        return False

    soon(is_assigned, lambda: f"an assignment, and not {answer}")
    return answer.member_epoch


def fetching(
    s: Stage, group: str, epoch: int, topic: str | None, *partitions: int, who: int = 1, acks: Any = (), **more: Any
) -> dict[str, Any]:
    body: dict[str, Any] = {
        "group_id": group, "member_id": member(who), "share_session_epoch": epoch, "max_wait_ms": 5000, "min_bytes": 1,
        "max_bytes": 1 << 20, "max_records": 500, "batch_size": 500,
    }  # fmt: skip
    if topic is not None:
        rows = [{"partition_index": p, "acknowledgement_batches": [ack(*a) for a in acks]} for p in partitions or (0,)]
        body["topics"] = [{"topic_id": s.topic_id(topic), "partitions": rows}]
    return body | more


def acknowledging(
    s: Stage, group: str, epoch: int, topic: str, *acks: Any, who: int = 1, **more: Any
) -> dict[str, Any]:
    rows = [{"partition_index": 0, "acknowledgement_batches": [ack(*a) for a in acks]}]
    topics = [{"topic_id": s.topic_id(topic), "partitions": rows}]
    return {"group_id": group, "member_id": member(who), "share_session_epoch": epoch, "topics": topics} | more


def ack(first: int, last: int, *types: int) -> dict[str, Any]:
    return {"first_offset": first, "last_offset": last, "acknowledge_types": list(types)}


def acquired(answer: dict[str, Any]) -> Any:
    """What was acquired, and which records came, without their contents."""
    for topic in answer.get("responses", []):
        for part in topic["partitions"]:
            part["records"] = [[b["base_offset"], b["last_offset"]] for b in part.get("records", [])]
    return answer


def filled(s: Stage, short: str = "t", count: int = 6) -> str:
    name = s.create(short)
    s.append(name, batch(*(f"{i}" for i in range(count))))
    return name


def heartbeats(s: Stage) -> None:
    api, topic = "ShareGroupHeartbeat", s.create()
    group = s.group("sg")
    s.ask("empty group", api, 1, **joining("", [topic]))
    s.ask("empty member", api, 1, **joining(group, [topic]) | {"member_id": ""})
    s.ask("no topics in the first heartbeat", api, 1, **joining(group, None))
    s.ask("an empty list of topics in the first heartbeat", api, 1, **joining(s.name("none"), []))
    s.ask("unknown group and member", api, 1, **joining(s.name("unk"), None, 3))
    s.ask("leaving an unknown group", api, 1, **joining(s.name("unk"), None, -1))
    s.ask("epoch -2", api, 1, **joining(group, [topic], -2))
    first = s.ask("join", api, 1, **joining(group, [topic]), keep=without_epoch)
    s.ask("join again", api, 1, **joining(group, [topic]), keep=without_epoch)
    s.ask("unknown member", api, 1, **joining(group, None, first.member_epoch, 9))
    s.ask("an epoch to come", api, 1, **joining(group, None, first.member_epoch + 50))
    s.ask("empty rack", api, 1, **joining(group, None, first.member_epoch), rack_id="", keep=without_epoch)
    s.ask("leave", api, 1, **joining(group, None, -1))
    s.ask("leave again", api, 1, **joining(group, None, -1))
    s.ask("after leaving", api, 1, **joining(group, None, first.member_epoch))


def without_epoch(answer: dict[str, Any]) -> dict[str, Any]:
    """Whether an assignment comes with the first answer or the second is the broker's own affair, and so are epochs."""
    answer.pop("member_epoch", None)
    answer.pop("assignment", None)
    return answer


def assigned(s: Stage) -> None:
    topic = s.create("t", 3)
    group = s.group("sg")
    epoch = joined(s, group, topic)

    def described(answer: dict[str, Any]) -> Any:
        return [[g["group_state"], sorted(m["member_id"] for m in g.get("members", []))] for g in answer["groups"]]

    s.ask("described", "ShareGroupDescribe", 1, group_ids=[group], keep=described)
    s.ask(
        "the assignment",
        "ShareGroupDescribe",
        1,
        group_ids=[group],
        keep=lambda a: a["groups"][0]["members"][0]["assignment"],
    )
    s.ask(
        "a classic member in a share group",
        "JoinGroup",
        9,
        group_id=group,
        session_timeout_ms=30000,
        rebalance_timeout_ms=1000,
        member_id="",
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": b""}],
    )
    s.ask(
        "a commit to a share group",
        "OffsetCommit",
        9,
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[{"name": topic, "partitions": [{"partition_index": 0, "committed_offset": 1}]}],
    )
    s.ask("a fetch of its offsets", "OffsetFetch", 9, groups=[{"group_id": group, "topics": None}])
    s.ask("described as a classic group", "DescribeGroups", 6, groups=[group])
    s.ask("listed", "ListGroups", 5, ours=True)
    s.ask("listed by type", "ListGroups", 5, types_filter=["Share"], ours=True)
    s.ask("deleted while it has members", "DeleteGroups", 2, groups_names=[group])
    s.send("ShareGroupHeartbeat", 1, **joining(group, None, -1))
    s.ask("described when empty", "ShareGroupDescribe", 1, group_ids=[group], keep=described)
    s.ask("deleted when empty", "DeleteGroups", 2, groups_names=[group])
    s.note("the member had an epoch", epoch > 0)


def describe(s: Stage) -> None:
    api = "ShareGroupDescribe"
    s.ask("unknown group", api, 1, group_ids=[s.name("unk")])
    s.ask("the empty name", api, 1, group_ids=[""])
    s.ask("nothing", api, 1, group_ids=[])
    classic = s.group("classic")
    topic = s.create()
    s.send(
        "OffsetCommit",
        9,
        group_id=classic,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[{"name": topic, "partitions": [{"partition_index": 0, "committed_offset": 1}]}],
    )
    s.ask("a classic group", api, 1, group_ids=[classic])
    s.ask(
        "a share member in a classic group", "ShareGroupHeartbeat", 1, **joining(classic, [topic]), keep=without_epoch
    )


def fetch_and_accept(s: Stage) -> None:
    for version in s.versions("ShareFetch"):
        topic, group = filled(s, f"t.v{version}"), share_group(s, f"sg.v{version}")
        joined(s, group, topic)
        s.ask("open", "ShareFetch", version, **fetching(s, group, 0, topic))
        s.ask("accept all", "ShareAcknowledge", version, **acknowledging(s, group, 1, topic, (0, 5, ACCEPT)))
        s.append(topic, batch("more"))
        s.ask("only what is new comes", "ShareFetch", version, **fetching(s, group, 2, None))
        s.ask(
            "accept with the next fetch",
            "ShareFetch",
            version,
            **fetching(s, group, 3, topic, acks=[(6, 6, ACCEPT)], max_wait_ms=0),
        )
        s.ask("close", "ShareFetch", version, **fetching(s, group, -1, None, max_wait_ms=0))
        s.ask("it is closed", "ShareFetch", version, **fetching(s, group, 4, None, max_wait_ms=0))


def acknowledgements(s: Stage) -> None:
    topic, group = filled(s), share_group(s)
    joined(s, group, topic)
    s.ask("acquire", "ShareFetch", 2, **fetching(s, group, 0, topic), keep=acquired)
    epoch = 0

    def acks(what: str, *rows: Any, **more: Any) -> None:
        nonlocal epoch
        epoch += 1
        s.ask(what, "ShareAcknowledge", 2, **acknowledging(s, group, epoch, topic, *rows, **more))

    def again(what: str) -> None:
        nonlocal epoch
        epoch += 1
        s.ask(what, "ShareFetch", 2, **fetching(s, group, epoch, topic, max_wait_ms=500), keep=acquired)

    acks("accept one, release one, reject one", (0, 0, ACCEPT), (1, 1, RELEASE), (2, 2, REJECT))
    again("the released one comes again")
    acks("accept again what was accepted", (0, 0, ACCEPT))
    acks("accept what was rejected", (2, 2, ACCEPT))
    acks("one type per record", (3, 5, ACCEPT, RELEASE, ACCEPT))
    again("the one released in the middle")
    acks("too few types", (1, 4, ACCEPT, ACCEPT))
    acks("no types", (1, 1))
    acks("unknown type", (1, 1, 9))
    acks("negative type", (1, 1, -1))
    acks("last before first", (4, 1, ACCEPT))
    acks("overlapping", (1, 4, ACCEPT), (3, 5, ACCEPT))
    acks("past the end", (100, 101, ACCEPT))
    acks("renew without the flag", (1, 1, RENEW))
    acks("renew with the flag", (1, 1, RENEW), is_renew_ack=True)
    acks("nothing")
    acks("gap", (4, 4, GAP))
    acks("accept the rest", (1, 1, ACCEPT))
    s.append(topic, batch("x"))
    again("only the new one")


def delivery_limit(s: Stage) -> None:
    topic, group = filled(s, count=1), share_group(s, share_delivery_count_limit="2")
    joined(s, group, topic)
    s.ask("first", "ShareFetch", 2, **fetching(s, group, 0, topic), keep=acquired)
    s.ask("released", "ShareAcknowledge", 2, **acknowledging(s, group, 1, topic, (0, 0, RELEASE)))
    s.ask("second", "ShareFetch", 2, **fetching(s, group, 2, topic), keep=acquired)
    s.ask("released again", "ShareAcknowledge", 2, **acknowledging(s, group, 3, topic, (0, 0, RELEASE)))
    s.append(topic, batch("next"))
    s.ask("it does not come a third time", "ShareFetch", 2, **fetching(s, group, 4, topic), keep=acquired)


def limits(s: Stage) -> None:
    topic, group = filled(s, count=10), share_group(s)
    s.append(topic, batch(*"abcde"), batch(*"fghij"))
    joined(s, group, topic)
    s.ask(
        "three at most, batch optimized", "ShareFetch", 2, **fetching(s, group, 0, topic, max_records=3), keep=acquired
    )
    s.ask(
        "three at most, strictly",
        "ShareFetch",
        2,
        **fetching(s, group, 1, topic, max_records=3, share_acquire_mode=1),
        keep=acquired,
    )
    s.ask(
        "batches of two",
        "ShareFetch",
        2,
        **fetching(s, group, 2, topic, batch_size=2, max_records=4, share_acquire_mode=1),
        keep=acquired,
    )
    s.ask(
        "unknown mode",
        "ShareFetch",
        2,
        **fetching(s, group, 3, topic, share_acquire_mode=7, max_wait_ms=0),
        keep=acquired,
    )
    s.ask("renew flag with a read", "ShareFetch", 2, **fetching(s, group, 4, topic, is_renew_ack=True), keep=acquired)


def sessions(s: Stage) -> None:
    topic, group = filled(s), share_group(s)
    joined(s, group, topic)
    quick: dict[str, Any] = {"max_wait_ms": 0}
    s.ask("epoch 1 without a session", "ShareFetch", 2, **fetching(s, group, 1, topic, **quick), keep=acquired)
    s.ask("acknowledge without a session", "ShareAcknowledge", 2, **acknowledging(s, group, 1, topic, (0, 0, ACCEPT)))
    s.ask("acknowledge with epoch 0", "ShareAcknowledge", 2, **acknowledging(s, group, 0, topic, (0, 0, ACCEPT)))
    s.ask("close without a session", "ShareFetch", 2, **fetching(s, group, -1, None, **quick), keep=acquired)
    s.ask(
        "acknowledgement while opening",
        "ShareFetch",
        2,
        **fetching(s, group, 0, topic, acks=[(0, 0, ACCEPT)], **quick),
        keep=acquired,
    )
    s.ask("open", "ShareFetch", 2, **fetching(s, group, 0, topic), keep=acquired)
    s.ask("epoch 5 instead of 1", "ShareFetch", 2, **fetching(s, group, 5, topic, **quick), keep=acquired)
    s.ask("negative epoch", "ShareFetch", 2, **fetching(s, group, -2, topic, **quick), keep=acquired)
    s.ask("open again", "ShareFetch", 2, **fetching(s, group, 0, topic, **quick), keep=acquired)
    s.ask("another member's session", "ShareFetch", 2, **fetching(s, group, 1, topic, who=7, **quick), keep=acquired)
    s.ask("null group", "ShareFetch", 2, **fetching(s, group, 0, topic, **quick) | {"group_id": None}, keep=acquired)
    s.ask("null member", "ShareFetch", 2, **fetching(s, group, 0, topic, **quick) | {"member_id": None}, keep=acquired)
    s.ask(
        "a member id that is no Uuid",
        "ShareFetch",
        2,
        **fetching(s, group, 0, topic, **quick) | {"member_id": "me"},
        keep=acquired,
    )
    s.ask("empty group", "ShareFetch", 2, **fetching(s, "", 0, topic, **quick), keep=acquired)
    s.ask("close by an acknowledgement", "ShareAcknowledge", 2, **acknowledging(s, group, -1, topic, (0, 5, ACCEPT)))


def places(s: Stage) -> None:
    topic, group = filled(s), share_group(s)
    joined(s, group, topic)
    quick: dict[str, Any] = {"max_wait_ms": 0}
    s.ask("unknown partition", "ShareFetch", 2, **fetching(s, group, 0, topic, 9, **quick), keep=acquired)
    unknown = [{"topic_id": uuid.UUID(int=55).bytes, "partitions": [{"partition_index": 0}]}]
    s.ask("unknown topic", "ShareFetch", 2, **fetching(s, group, 0, None, topics=unknown, **quick), keep=acquired)
    s.ask("nothing", "ShareFetch", 2, **fetching(s, group, 0, None, **quick), keep=acquired)
    s.ask(
        "acknowledge in an unknown topic",
        "ShareAcknowledge",
        2,
        **acknowledging(s, group, 1, topic)
        | {
            "topics": [unknown[0] | {"partitions": [{"partition_index": 0, "acknowledgement_batches": [ack(0, 0, 1)]}]}]
        },
    )


def two_members(s: Stage) -> None:
    """What one holds the other can't have, until the first ends its session."""
    topic, group = filled(s), share_group(s)
    joined(s, group, topic)
    joined(s, group, topic, who=2)
    s.ask("the first takes all", "ShareFetch", 2, on="b", **fetching(s, group, 0, topic), keep=acquired)
    s.ask(
        "nothing is left for the second",
        "ShareFetch",
        2,
        on="c",
        **fetching(s, group, 0, topic, who=2, max_wait_ms=300),
        keep=acquired,
    )
    s.ask(
        "it can't accept what it does not hold",
        "ShareAcknowledge",
        2,
        on="c",
        **acknowledging(s, group, 1, topic, (0, 0, ACCEPT), who=2),
    )
    held: Pending = s.post("ShareFetch", 2, on="c", **fetching(s, group, 2, topic, who=2, max_wait_ms=3000))
    s.ask(
        "the first ends its session",
        "ShareFetch",
        2,
        on="b",
        **fetching(s, group, -1, None, max_wait_ms=0),
        keep=acquired,
    )
    s.take("the second gets it", held, keep=acquired)


def latest(s: Stage) -> None:
    """Without share.auto.offset.reset a group begins at the end."""
    topic, group = filled(s), s.group("sg")
    joined(s, group, topic)
    s.ask(
        "what was there does not come", "ShareFetch", 2, **fetching(s, group, 0, topic, max_wait_ms=300), keep=acquired
    )
    s.append(topic, batch("new"))
    s.ask("what is new does", "ShareFetch", 2, **fetching(s, group, 1, topic), keep=acquired)


def offsets(s: Stage) -> None:
    topic, group = filled(s), share_group(s)
    joined(s, group, topic)
    s.send("ShareFetch", 2, **fetching(s, group, 0, topic))
    s.send("ShareAcknowledge", 2, **acknowledging(s, group, 1, topic, (0, 1, ACCEPT), (3, 3, ACCEPT)))
    rows = [{"topic_name": topic, "partitions": [0]}]

    def asking(target: str, topics: Any) -> dict[str, Any]:
        return {"groups": [{"group_id": target, "topics": topics}]}

    api = "DescribeShareGroupOffsets"
    s.ask("one", api, "all", **asking(group, rows))
    s.ask("all", api, "all", **asking(group, None))
    # An unknown partition is not asked for: Kafka looks for its leader for half a minute.
    s.ask("unknown topic", api, "all", **asking(group, [{"topic_name": s.name("nope"), "partitions": [0]}]))
    s.ask("unknown group", api, "all", **asking(s.name("unk"), rows))
    s.ask("no groups", api, "all", groups=[])
    alter = {
        "group_id": group,
        "topics": [{"topic_name": topic, "partitions": [{"partition_index": 0, "start_offset": 5}]}],
    }
    s.ask("alter while there are members", "AlterShareGroupOffsets", 0, **alter)
    s.ask(
        "delete while there are members", "DeleteShareGroupOffsets", 0, group_id=group, topics=[{"topic_name": topic}]
    )
    s.send("ShareFetch", 2, **fetching(s, group, -1, None, max_wait_ms=0))
    s.send("ShareGroupHeartbeat", 1, **joining(group, None, -1))
    s.ask("alter", "AlterShareGroupOffsets", 0, **alter)
    s.ask("after that", api, 1, **asking(group, rows))
    s.ask(
        "alter in an unknown topic",
        "AlterShareGroupOffsets",
        0,
        **alter
        | {"topics": [{"topic_name": s.name("nope"), "partitions": [{"partition_index": 0, "start_offset": 5}]}]},
    )
    s.ask(
        "alter an unknown partition",
        "AlterShareGroupOffsets",
        0,
        **alter | {"topics": [{"topic_name": topic, "partitions": [{"partition_index": 9, "start_offset": 5}]}]},
    )
    s.ask("alter an unknown group", "AlterShareGroupOffsets", 0, **alter | {"group_id": s.name("unk")})
    s.ask("delete", "DeleteShareGroupOffsets", 0, group_id=group, topics=[{"topic_name": topic}])
    s.ask("delete again", "DeleteShareGroupOffsets", 0, group_id=group, topics=[{"topic_name": topic}])
    s.ask(
        "delete in an unknown topic",
        "DeleteShareGroupOffsets",
        0,
        group_id=group,
        topics=[{"topic_name": s.name("nope")}],
    )
    s.ask(
        "delete of an unknown group",
        "DeleteShareGroupOffsets",
        0,
        group_id=s.name("unk"),
        topics=[{"topic_name": topic}],
    )
    s.ask("after that nothing is known", api, 1, **asking(group, rows))


def coordinator_state(s: Stage) -> None:
    """The share coordinator's own calls, as brokers make them."""
    topic, group = s.create(), s.group("sg")
    raw = s.topic_id(topic)
    key = f"{group}:{base64.urlsafe_b64encode(raw).rstrip(b'=').decode()}:0"
    s.until(lambda a: a.coordinators[0].error_code == 0, "FindCoordinator", 6, key_type=2, coordinator_keys=[key])
    s.ask(
        "its coordinator",
        "FindCoordinator",
        6,
        key_type=2,
        coordinator_keys=[key],
        keep=lambda a: {k: v for k, v in a["coordinators"][0].items() if k != "key"},
    )

    def state(**fields: Any) -> dict[str, Any]:
        return {"group_id": group, "topics": [{"topic_id": raw, "partitions": [{"partition": 0} | fields]}]}

    loading = {14, 15, 16}
    s.until(
        lambda a: a.results[0].partitions[0].error_code not in loading,
        "ReadShareGroupStateSummary",
        0,
        **state(leader_epoch=0),
    )
    s.ask("summary of nothing", "ReadShareGroupStateSummary", "all", **state(leader_epoch=0))
    s.ask("initialize", "InitializeShareGroupState", 0, **state(state_epoch=1, start_offset=10))
    s.ask("read", "ReadShareGroupState", 0, **state(leader_epoch=0))
    rows = [
        {"first_offset": 10, "last_offset": 12, "delivery_state": 0, "delivery_count": 1},
        {"first_offset": 13, "last_offset": 13, "delivery_state": 2, "delivery_count": 1},
    ]
    s.ask(
        "write",
        "WriteShareGroupState",
        1,
        **state(state_epoch=1, leader_epoch=0, start_offset=10, delivery_complete_count=1, state_batches=rows),
    )
    s.ask("read what was written", "ReadShareGroupState", 0, **state(leader_epoch=0))
    s.ask("summary", "ReadShareGroupStateSummary", "all", **state(leader_epoch=0))
    s.ask(
        "write over it",
        "WriteShareGroupState",
        0,
        **state(state_epoch=1, leader_epoch=0, start_offset=11, state_batches=[rows[0] | {"delivery_state": 4}]),
    )
    s.ask("read the sum", "ReadShareGroupState", 0, **state(leader_epoch=0))
    s.ask(
        "write with an old state epoch",
        "WriteShareGroupState",
        1,
        **state(state_epoch=0, leader_epoch=0, start_offset=11),
    )
    s.ask(
        "write with a newer leader epoch",
        "WriteShareGroupState",
        1,
        **state(state_epoch=1, leader_epoch=5, start_offset=11),
    )
    s.ask(
        "write with an old leader epoch",
        "WriteShareGroupState",
        1,
        **state(state_epoch=1, leader_epoch=3, start_offset=11),
    )
    s.ask("read with an old leader epoch", "ReadShareGroupState", 0, **state(leader_epoch=2))
    s.ask("initialize with an old state epoch", "InitializeShareGroupState", 0, **state(state_epoch=0, start_offset=10))
    s.ask("initialize anew", "InitializeShareGroupState", 0, **state(state_epoch=2, start_offset=20))
    s.ask("read anew", "ReadShareGroupState", 0, **state(leader_epoch=5))
    s.ask("delete", "DeleteShareGroupState", 0, **state())
    s.ask("delete again", "DeleteShareGroupState", 0, **state())
    s.ask("read what is deleted", "ReadShareGroupState", 0, **state(leader_epoch=5))
    s.ask(
        "unknown topic",
        "ReadShareGroupState",
        0,
        group_id=group,
        topics=[{"topic_id": uuid.UUID(int=66).bytes, "partitions": [{"partition": 0}]}],
    )
    s.ask(
        "negative partition",
        "ReadShareGroupState",
        0,
        group_id=group,
        topics=[{"topic_id": raw, "partitions": [{"partition": -1}]}],
    )
