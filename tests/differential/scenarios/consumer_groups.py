"""Consumer groups whose assignment the broker makes (KIP-848): heartbeats, epochs, reconciliation, offsets, admin."""

from __future__ import annotations

from typing import Any

from ..stage import Stage

API = "ConsumerGroupHeartbeat"
GROUP = 32


def member(n: int = 1) -> str:
    """A member id as consumers make them."""
    return f"member-{n}"


def consumer_group(s: Stage, short: str = "cg") -> str:
    """A group whose every change is assigned at once."""
    name = s.group(short)
    change = {"name": "consumer.assignment.interval.ms", "config_operation": 0, "value": "0"}
    answer = s.send(
        "IncrementalAlterConfigs", 1, resources=[{"resource_type": GROUP, "resource_name": name, "configs": [change]}]
    )
    assert answer.responses[0].error_code == 0, answer
    s.settle()
    return name


def joining(group: str, topics: list[str] | None, who: int = 1, **more: Any) -> dict[str, Any]:
    body: dict[str, Any] = {
        "group_id": group,
        "member_id": member(who),
        "member_epoch": 0,
        "rebalance_timeout_ms": 60_000,
        "subscribed_topic_names": topics,
        "topic_partitions": [],
    }
    return body | more


def going_on(group: str, epoch: int, owned: Any = None, who: int = 1, **more: Any) -> dict[str, Any]:
    return {"group_id": group, "member_id": member(who), "member_epoch": epoch, "topic_partitions": owned} | more


def owning(s: Stage, topic: str, *partitions: int) -> list[dict[str, Any]]:
    return [{"topic_id": s.topic_id(topic), "partitions": list(partitions)}] if partitions else []


def assigned(answer: Any) -> list[int]:
    return sorted(index for part in answer.assignment.topic_partitions for index in part.partitions)


def shown(answer: dict[str, Any]) -> dict[str, Any]:
    """How soon the next heartbeat is due is the broker's own affair; which partitions go where is a hash table's."""
    answer.pop("heartbeat_interval_ms", None)
    for part in (answer.get("assignment") or {}).get("topic_partitions", []):
        part["partitions"] = len(part["partitions"])
    return answer


def what_a_heartbeat_must_say(s: Stage) -> None:
    topic = s.create()
    group = s.group("cg")
    s.ask("empty group", API, "all", **joining("", [topic]))
    s.ask("empty member, going on", API, "all", **going_on(group, 1) | {"member_id": ""})
    s.ask("empty member, joining", API, 1, **joining(group, [topic], member_id=""))
    s.ask("empty instance", API, "all", **joining(group, [topic], instance_id=""))
    s.ask("empty rack", API, "all", **joining(group, [topic], rack_id=""))
    s.ask("no rebalance timeout", API, "all", **joining(group, [topic], rebalance_timeout_ms=-1))
    s.ask("owning nothing said", API, "all", **joining(group, [topic], topic_partitions=None))
    s.ask("no topics said", API, "all", **joining(group, None))
    s.ask("leaving for a while without an instance", API, "all", **going_on(group, -2))
    s.ask("epoch -3", API, "all", **going_on(group, -3))
    s.ask("unknown assignor", API, "all", **joining(group, [topic], server_assignor="sticky"))
    s.ask("unknown group", API, "all", **going_on(s.name("unk"), 3))
    s.ask("leaving an unknown group", API, "all", **going_on(s.name("unk"), -1))


def members_come_and_go(s: Stage) -> None:
    topic = s.create("t", 4)
    group = consumer_group(s)
    first = s.ask("join", API, "all", keep=shown, **joining(group, [topic]))
    s.ask("nothing new", API, 1, keep=shown, **going_on(group, first.member_epoch))
    s.ask(
        "everything said again",
        API,
        1,
        keep=shown,
        **joining(group, [topic], member_epoch=first.member_epoch, topic_partitions=owning(s, topic, 0, 1, 2, 3)),
    )
    s.ask("unknown member", API, 1, keep=shown, **going_on(group, first.member_epoch, who=9))
    s.ask("an epoch to come", API, 1, keep=shown, **going_on(group, first.member_epoch + 5))
    second = s.ask("a second joins", API, 1, keep=shown, **joining(group, [topic], 2))
    less = s.ask(
        "the first is to let go",
        API,
        1,
        keep=shown,
        **going_on(group, first.member_epoch, owning(s, topic, 0, 1, 2, 3)),
    )
    s.ask("the second waits", API, 1, keep=shown, **going_on(group, second.member_epoch, [], who=2))
    s.ask("the first has not let go", API, 1, keep=shown, **going_on(group, less.member_epoch))
    kept = assigned(less)
    done = s.ask(
        "the first has let go", API, 1, keep=shown, **going_on(group, less.member_epoch, owning(s, topic, *kept))
    )
    s.ask("the second gets them", API, 1, keep=shown, **going_on(group, second.member_epoch, [], who=2))
    s.ask(
        "the epoch before, owning too much",
        API,
        1,
        keep=shown,
        **going_on(group, less.member_epoch, owning(s, topic, 0, 1, 2, 3)),
    )
    s.ask(
        "the epoch before, after a lost answer",
        API,
        1,
        keep=shown,
        **going_on(group, less.member_epoch, owning(s, topic, *kept)),
    )
    s.ask("the second leaves", API, 1, keep=shown, **going_on(group, -1, who=2))
    s.ask("the first gets all", API, 1, keep=shown, **going_on(group, done.member_epoch))
    s.ask("the first leaves", API, 0, keep=shown, **going_on(group, -1))
    s.ask("again", API, 0, keep=shown, **going_on(group, -1))
    s.ask("described", "ConsumerGroupDescribe", "all", group_ids=[group])
    s.ask("a member of the emptied group", API, 1, keep=shown, **joining(group, [topic], 3))


def static_members(s: Stage) -> None:
    topic = s.create("t", 2)
    group = consumer_group(s)
    first = s.ask("join", API, "1", keep=shown, **joining(group, [topic], instance_id="one"))
    s.ask("another under its name", API, 1, keep=shown, **joining(group, [topic], 2, instance_id="one"))
    s.ask("an unknown instance", API, 1, keep=shown, **going_on(group, 1, instance_id="two"))
    s.ask("leave for a while", API, 1, keep=shown, **going_on(group, -2, instance_id="one"))
    s.ask("described while away", "ConsumerGroupDescribe", 1, group_ids=[group])
    s.ask("the successor", API, 1, keep=shown, **joining(group, [topic], 2, instance_id="one"))
    s.ask("the first is fenced", API, 1, keep=shown, **going_on(group, first.member_epoch, instance_id="one"))
    s.ask("its leaving is fenced", API, 1, keep=shown, **going_on(group, -1, instance_id="one"))
    s.ask("leave for good", API, 1, keep=shown, **going_on(group, -1, who=2, instance_id="one"))


def offsets(s: Stage) -> None:
    topic = s.create("t", 2)
    group = consumer_group(s)
    epoch = s.send(API, 1, **joining(group, [topic])).member_epoch

    def committing(who: int, epoch: int, offset: int, **more: Any) -> dict[str, Any]:
        part = {"partition_index": 0, "committed_offset": offset}
        topics = [{"name": topic, "topic_id": s.topic_id(topic), "partitions": [part]}]
        return {"group_id": group, "member_id": member(who), "generation_id_or_member_epoch": epoch,
                "topics": topics} | more  # fmt: skip

    def fetching(who: int | None, epoch: int) -> dict[str, Any]:
        topics = [{"name": topic, "topic_id": s.topic_id(topic), "partition_indexes": [0]}]
        asked = {"group_id": group, "member_id": None if who is None else member(who), "member_epoch": epoch,
                 "topics": topics}  # fmt: skip
        return {"groups": [asked]}

    s.ask("commit", "OffsetCommit", range(8, 11), **committing(1, epoch, 5))
    s.ask("commit in an epoch to come", "OffsetCommit", [9, 10], **committing(1, epoch + 1, 6))
    s.ask("commit in an epoch before all", "OffsetCommit", [9, 10], **committing(1, 0, 6))
    s.ask("commit of nobody", "OffsetCommit", [9, 10], **committing(7, epoch, 6))
    s.ask("commit of an administrator", "OffsetCommit", [9, 10], **committing(1, -1, 6) | {"member_id": ""})
    s.ask("fetch", "OffsetFetch", [9, 10], **fetching(1, epoch))
    s.ask("fetch in another epoch", "OffsetFetch", [9, 10], **fetching(1, epoch + 1))
    s.ask("fetch of nobody", "OffsetFetch", [9, 10], **fetching(7, epoch))
    s.ask("fetch of an administrator", "OffsetFetch", [8, 9, 10], **fetching(None, -1))
    s.ask(
        "delete what is read",
        "OffsetDelete",
        0,
        group_id=group,
        topics=[{"name": topic, "partitions": [{"partition_index": 0}]}],
    )
    s.send(API, 1, **going_on(group, -1))
    s.ask("commit of an administrator, empty", "OffsetCommit", [9, 10], **committing(1, -1, 8) | {"member_id": ""})
    s.ask("delete", "OffsetDelete", 0, group_id=group, topics=[{"name": topic, "partitions": [{"partition_index": 0}]}])


def commits_from_before_a_rebalance(s: Stage) -> None:
    """KIP-1251."""
    topic = s.create("t", 2)
    group = consumer_group(s)
    before = s.send(API, 1, **joining(group, [topic])).member_epoch
    second = s.send(API, 1, **joining(group, [topic], 2)).member_epoch
    kept = assigned(s.send(API, 1, **going_on(group, before, owning(s, topic, 0, 1))))
    after = s.send(API, 1, **going_on(group, before, owning(s, topic, *kept))).member_epoch
    s.send(API, 1, **going_on(group, second, [], who=2))
    assert after > before

    def committing(who: int, epoch: int, *partitions: int) -> dict[str, Any]:
        parts = [{"partition_index": index, "committed_offset": 4} for index in partitions]
        topics = [{"name": topic, "topic_id": s.topic_id(topic), "partitions": parts}]
        return {"group_id": group, "member_id": member(who), "generation_id_or_member_epoch": epoch, "topics": topics}

    (lost,) = {0, 1} - set(kept)
    without = lambda answer: [p["error_code"] for t in answer["topics"] for p in t["partitions"]]  # noqa: E731
    s.ask("what it kept", "OffsetCommit", 9, keep=without, **committing(1, before, *kept))
    s.ask("what it lost", "OffsetCommit", 9, keep=without, **committing(1, before, lost))
    s.ask("both", "OffsetCommit", 9, keep=lambda a: sorted(without(a)), **committing(1, before, 0, 1))
    s.ask("what it never had, in its epoch", "OffsetCommit", 9, keep=without, **committing(1, after, lost))
    s.ask("what is new to the other", "OffsetCommit", 9, keep=without, **committing(2, before, lost))


def administration(s: Stage) -> None:
    topic = s.create("t", 2)
    group = consumer_group(s)
    epoch = s.send(API, 1, **joining(group, [topic], rack_id="r", server_assignor="range")).member_epoch
    s.ask("described", "ConsumerGroupDescribe", "all", group_ids=[group])
    s.ask("described with rights", "ConsumerGroupDescribe", 1, group_ids=[group], include_authorized_operations=True)
    s.ask("unknown", "ConsumerGroupDescribe", "all", group_ids=[s.name("unk")])
    s.ask("empty", "ConsumerGroupDescribe", "all", group_ids=[""])
    s.ask("as a classic group", "DescribeGroups", [5, 6], groups=[group])
    s.ask("as a share group", "ShareGroupDescribe", 1, group_ids=[group])
    s.ask("listed", "ListGroups", 5, ours=True, types_filter=["consumer"], states_filter=["Stable"])
    s.ask("listed as classic", "ListGroups", 5, ours=True, types_filter=["classic"])
    s.ask("delete", "DeleteGroups", 2, groups_names=[group])
    s.ask("heartbeat of the classic protocol", "Heartbeat", 4, group_id=group, member_id=member(), generation_id=epoch)
    s.ask("leave of the classic protocol", "LeaveGroup", 5, group_id=group, members=[{"member_id": member(4)}])
    s.ask(
        "share heartbeat",
        "ShareGroupHeartbeat",
        1,
        group_id=group,
        member_id="x",
        member_epoch=0,
        subscribed_topic_names=[topic],
    )
    s.send(API, 1, **going_on(group, -1))
    s.ask("delete the empty one", "DeleteGroups", 2, groups_names=[group])
    s.ask("described after that", "ConsumerGroupDescribe", 1, group_ids=[group])


def beside_other_kinds(s: Stage) -> None:
    topic = s.create("t", 2)
    simple = s.group("simple")
    part = {"partition_index": 0, "committed_offset": 3}
    s.send(
        "OffsetCommit",
        9,
        group_id=simple,
        member_id="",
        generation_id_or_member_epoch=-1,
        topics=[{"name": topic, "partitions": [part]}],
    )
    s.ask("a group of offsets, described", "ConsumerGroupDescribe", 1, group_ids=[simple])
    s.ask("goes on in a group of offsets", API, 1, keep=shown, **going_on(simple, 2))
    s.ask("joins a group of offsets", API, 1, keep=lambda a: a["error_code"], **joining(simple, [topic]))
    s.ask(
        "its offsets",
        "OffsetFetch",
        9,
        groups=[{"group_id": simple, "topics": [{"name": topic, "partition_indexes": [0]}]}],
    )
    share = s.group("share")
    s.send(
        "ShareGroupHeartbeat",
        1,
        group_id=share,
        member_id="AAAAAAAAAAAAAAAAAAAAAQ",
        member_epoch=0,
        subscribed_topic_names=[topic],
    )
    s.ask("joins a share group", API, 1, keep=shown, **joining(share, [topic]))
    s.ask("a share group, described", "ConsumerGroupDescribe", 1, group_ids=[share])
