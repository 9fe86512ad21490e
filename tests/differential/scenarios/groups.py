"""The classic group protocol: join, sync, heartbeat, leave; dynamic and static members; fencing."""

from __future__ import annotations

from typing import Any

from ..consumer import subscription
from ..stage import Pending, Stage

RANGE = {"name": "range", "metadata": subscription(["read"])}
ROUND = {"name": "roundrobin", "metadata": subscription(["read", "also"])}
STICKY = {"name": "sticky", "metadata": subscription(["read"], 1)}


def joining(
    group: str, member: str = "", *, instance: str | None = None, protocols: Any = (RANGE,), **more: Any
) -> dict[str, Any]:
    body = {
        "group_id": group,
        "session_timeout_ms": 30000,
        "rebalance_timeout_ms": 10000,
        "member_id": member,
        "group_instance_id": instance,
        "protocol_type": "consumer",
        "protocols": list(protocols),
    }
    return body | more


def member_id(s: Stage, group: str, on: str = "a", **more: Any) -> str:
    """A member id as the coordinator hands it out to whoever joins without one."""
    return s.send("JoinGroup", 9, on=on, **joining(group, **more)).member_id


def syncing(
    group: str, generation: int, member: str, assignments: dict[str, bytes] | None = None, **more: Any
) -> dict[str, Any]:
    rows = [{"member_id": m, "assignment": a} for m, a in (assignments or {}).items()]
    body = {
        "group_id": group,
        "generation_id": generation,
        "member_id": member,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": rows,
    }
    return body | more


def alone(s: Stage, group: str, **more: Any) -> tuple[str, int]:
    """A stable group of one dynamic member: its id and generation."""
    member = member_id(s, group, **more)
    joined = s.send("JoinGroup", 9, **joining(group, member, **more))
    assert joined.error_code == 0, joined
    synced = s.send("SyncGroup", 5, **syncing(group, joined.generation_id, member, {member: b"all"}))
    assert synced.error_code == 0, synced
    return member, joined.generation_id


def one_member(s: Stage) -> None:
    """The life of a member in every version; before v4 the first join is enough."""
    for version in s.versions("JoinGroup"):
        s.forget_members()
        group = s.group(f"g.v{version}")
        answer = s.ask("join without an id", "JoinGroup", version, **joining(group))
        if version >= 4:
            answer = s.ask("join with the id", "JoinGroup", version, **joining(group, answer.member_id))
        member = answer.member_id
        sync = min(version, 5)
        s.ask("sync as the leader", "SyncGroup", sync, **syncing(group, 1, member, {member: b"all"}))
        s.ask("sync again", "SyncGroup", sync, **syncing(group, 1, member, {member: b"other"}))
        s.ask("heartbeat", "Heartbeat", min(version, 4), group_id=group, generation_id=1, member_id=member)
        leave = min(version, 5)
        fields: dict[str, Any] = {"members": [{"member_id": member}]} if leave >= 3 else {"member_id": member}
        s.ask("leave", "LeaveGroup", leave, group_id=group, **fields)
        s.ask("leave again", "LeaveGroup", leave, group_id=group, **fields)
        s.ask(
            "heartbeat after leaving", "Heartbeat", min(version, 4), group_id=group, generation_id=1, member_id=member
        )


def join_refused(s: Stage) -> None:
    group = s.group()

    def refused(what: str, name: str = group, **more: Any) -> None:
        s.ask(what, "JoinGroup", [0, 3, 5, 9], **joining(name, **more))

    refused("empty group", "")
    refused("session timeout too short", session_timeout_ms=5999)
    refused("session timeout too long", session_timeout_ms=1_800_001)
    refused("session timeout negative", session_timeout_ms=-1)
    refused("no protocols", protocols=[])
    refused("empty protocol type", protocol_type="")
    refused("unknown member", member="nobody")
    refused("unknown group and member", s.name("other"), member="nobody")
    s.ask("unknown static member", "JoinGroup", [5, 9], **joining(group, "nobody", instance="i1"))
    s.ask("empty instance id", "JoinGroup", [5, 9], **joining(group, "", instance=""))


def join_a_running_group(s: Stage) -> None:
    group = s.group()
    member, _ = alone(s, group)
    s.ask("another protocol type", "JoinGroup", [3, 9], on="b", **joining(group, protocol_type="connect"))
    s.ask("no common protocol", "JoinGroup", [3, 9], on="b", **joining(group, protocols=[ROUND]))
    s.ask("no protocols", "JoinGroup", 9, on="b", **joining(group, protocols=[]))
    s.ask("an id nobody gave out", "JoinGroup", 9, on="b", **joining(group, "made-up"))
    s.ask("the leader joins again: a new generation", "JoinGroup", 9, **joining(group, member))
    s.ask("and again before any sync", "JoinGroup", 9, **joining(group, member))
    s.ask("heartbeat with the old generation", "Heartbeat", 4, group_id=group, generation_id=1, member_id=member)
    s.ask("heartbeat before the sync", "Heartbeat", 4, group_id=group, generation_id=3, member_id=member)


def two_members(s: Stage) -> None:
    """A second member starts a rebalance that the first has to hear of; follower and leader sync."""
    group = s.group()
    one, _ = alone(s, group, protocols=[RANGE, ROUND])
    two = member_id(s, group, "b")
    s.ask("a pending member does not disturb", "Heartbeat", 4, group_id=group, generation_id=1, member_id=one)
    held = s.post("JoinGroup", 9, on="b", **joining(group, two, protocols=[ROUND, RANGE]))
    s.until(lambda a: a.error_code != 0, "Heartbeat", 4, group_id=group, generation_id=1, member_id=one)
    s.ask("the first hears of it", "Heartbeat", "all", group_id=group, generation_id=1, member_id=one)
    s.ask("its sync tells it too", "SyncGroup", 5, **syncing(group, 1, one))
    s.ask("a stranger's heartbeat", "Heartbeat", 4, group_id=group, generation_id=1, member_id="nobody")
    s.ask("a wrong generation", "Heartbeat", 4, group_id=group, generation_id=0, member_id=one)
    s.ask("described while it prepares", "DescribeGroups", 5, groups=[group], keep=states)
    s.ask("the first joins", "JoinGroup", 9, **joining(group, one, protocols=[RANGE, ROUND]), keep=joined_as)
    s.take("the second has joined", held, keep=joined_as)
    s.ask("described while it waits for the leader", "DescribeGroups", 5, groups=[group], keep=states)
    held = s.post("SyncGroup", 5, on="b", **syncing(group, 2, two))
    s.ask("heartbeat while it waits for the leader", "Heartbeat", 4, group_id=group, generation_id=2, member_id=one)
    s.ask("the leader syncs", "SyncGroup", 5, **syncing(group, 2, one, {one: b"for one", two: b"for two"}))
    s.take("the follower has its part", held)
    s.ask("described when stable", "DescribeGroups", 5, groups=[group], keep=states)
    s.ask(
        "the follower joins unchanged: nothing happens",
        "JoinGroup",
        9,
        on="b",
        **joining(group, two, protocols=[ROUND, RANGE]),
        keep=joined_as,
    )
    s.ask("its sync gives the same part", "SyncGroup", 5, on="b", **syncing(group, 2, two))
    held = s.post("JoinGroup", 9, on="b", **joining(group, two, protocols=[RANGE]))
    s.until(lambda a: a.error_code != 0, "Heartbeat", 4, group_id=group, generation_id=2, member_id=one)
    s.ask(
        "the follower joins with other protocols: a rebalance",
        "Heartbeat",
        4,
        group_id=group,
        generation_id=2,
        member_id=one,
    )
    s.ask("the first leaves meanwhile", "LeaveGroup", 5, group_id=group, members=[{"member_id": one}])
    s.take("the second is alone", held, keep=joined_as)


def two_members_old_versions(s: Stage) -> None:
    """The same dance in the versions of old clients, with leader, follower and a rebalance when one leaves."""
    for join, sync, beat, leave in ((0, 0, 0, 0), (2, 1, 1, 1), (3, 2, 2, 2), (5, 3, 3, 3), (7, 4, 4, 4)):
        s.forget_members()
        group = s.group(f"g.v{join}")
        one = s.send("JoinGroup", join, **joining(group)).member_id
        if join >= 4:
            s.send("JoinGroup", join, **joining(group, one))
        s.send("SyncGroup", sync, **syncing(group, 1, one, {one: b"all"}))
        two = member_id(s, group, "b") if join >= 4 else ""
        held = s.post("JoinGroup", join, on="b", **joining(group, two))
        s.until(lambda a: a.error_code != 0, "Heartbeat", beat, group_id=group, generation_id=1, member_id=one)
        s.ask("the first hears of it", "Heartbeat", beat, group_id=group, generation_id=1, member_id=one)
        s.ask("the first joins", "JoinGroup", join, **joining(group, one), keep=joined_as)
        two = s.take("the second has joined", held, keep=joined_as).member_id
        held = s.post("SyncGroup", sync, on="b", **syncing(group, 2, two))
        s.ask("the leader syncs", "SyncGroup", sync, **syncing(group, 2, one, {one: b"1", two: b"2"}))
        s.take("the follower has its part", held)
        fields: dict[str, Any] = {"members": [{"member_id": two}]} if leave >= 3 else {"member_id": two}
        s.ask("the follower leaves", "LeaveGroup", leave, on="b", group_id=group, **fields)
        s.ask("the leader hears of it", "Heartbeat", beat, group_id=group, generation_id=2, member_id=one)
        s.ask("the leader is alone", "JoinGroup", join, **joining(group, one), keep=joined_as)


def joined_as(answer: dict[str, Any]) -> Any:
    answer = dict(answer)
    answer["members"] = sorted(m["member_id"] for m in answer.get("members", []))
    return answer


def states(answer: dict[str, Any]) -> Any:
    return [
        [g["error_code"], g.get("group_state"), g.get("protocol_data", ""), len(g.get("members", []))]
        for g in answer["groups"]
    ]


def sync_refused(s: Stage) -> None:
    group = s.group()
    s.ask("empty group", "SyncGroup", "all", **syncing("", 1, "m"))
    s.ask("unknown group", "SyncGroup", "all", **syncing(group, 1, "m"))
    member, generation = alone(s, group)
    s.ask("unknown member", "SyncGroup", "all", **syncing(group, generation, "nobody"))
    s.ask("empty member", "SyncGroup", [0, 5], **syncing(group, generation, ""))
    s.ask("old generation", "SyncGroup", "all", **syncing(group, generation - 1, member))
    s.ask("generation to come", "SyncGroup", "all", **syncing(group, generation + 1, member))
    s.ask("another protocol name", "SyncGroup", "all", **syncing(group, generation, member, protocol_name="roundrobin"))
    s.ask("another protocol type", "SyncGroup", "all", **syncing(group, generation, member, protocol_type="connect"))
    s.ask(
        "no protocol stated",
        "SyncGroup",
        "all",
        **syncing(group, generation, member, protocol_type=None, protocol_name=None),
    )
    s.ask(
        "instance id of a dynamic member",
        "SyncGroup",
        "3-",
        **syncing(group, generation, member, group_instance_id="i"),
    )
    s.ask("good after all", "SyncGroup", "all", **syncing(group, generation, member))


def assignments(s: Stage) -> None:
    """What the leader may hand in."""
    group = s.group()
    member = member_id(s, group)
    s.send("JoinGroup", 9, **joining(group, member))
    s.ask("none for the member, one for a stranger", "SyncGroup", 5, **syncing(group, 1, member, {"stranger": b"x"}))
    s.ask("it stays so", "SyncGroup", 5, **syncing(group, 1, member, {member: b"late"}))
    s.send("JoinGroup", 9, **joining(group, member))
    twice = [{"member_id": member, "assignment": b"first"}, {"member_id": member, "assignment": b"second"}]
    s.ask("the member twice", "SyncGroup", 5, **syncing(group, 2, member) | {"assignments": twice})
    s.send("JoinGroup", 9, **joining(group, member))
    s.ask("an empty assignment", "SyncGroup", 5, **syncing(group, 3, member, {member: b""}))
    s.ask("described", "DescribeGroups", 5, groups=[group])


def heartbeats(s: Stage) -> None:
    group = s.group()

    def beat(group: str, generation: int, member: str, instance: str | None = None) -> dict[str, Any]:
        return {
            "group_id": group,
            "generation_id": generation,
            "member_id": member,
            "group_instance_id": instance,
        }

    s.ask("empty group", "Heartbeat", "all", **beat("", 1, "m"))
    s.ask("unknown group", "Heartbeat", "all", **beat(group, 1, "m"))
    pending = member_id(s, group)
    s.ask("a pending member", "Heartbeat", "all", **beat(group, 0, pending))
    s.ask("a pending member, generation -1", "Heartbeat", "all", **beat(group, -1, pending))
    member, generation = alone(s, s.group("h"))
    group = s.name("h")
    s.ask("unknown member", "Heartbeat", "all", **beat(group, generation, "nobody"))
    s.ask("empty member", "Heartbeat", [0, 4], **beat(group, generation, ""))
    s.ask("old generation", "Heartbeat", "all", **beat(group, generation - 1, member))
    s.ask("generation to come", "Heartbeat", "all", **beat(group, generation + 1, member))
    s.ask("instance id of a dynamic member", "Heartbeat", "3-", **beat(group, generation, member, "i"))
    s.ask("good", "Heartbeat", "all", **beat(group, generation, member))


def leaving(s: Stage) -> None:
    group = s.group()
    api = "LeaveGroup"
    s.ask("empty group", api, "0-2", group_id="", member_id="m")
    s.ask("empty group", api, "3-", group_id="", members=[{"member_id": "m"}])
    s.ask("unknown group", api, "0-2", group_id=group, member_id="m")
    s.ask("unknown group", api, "3-", group_id=group, members=[{"member_id": "m"}])
    s.ask("unknown group, nobody named", api, "3-", group_id=group, members=[])
    pending = member_id(s, group)
    s.ask("a pending member", api, 5, group_id=group, members=[{"member_id": pending}])
    member, _ = alone(s, group)
    s.ask("unknown member", api, "0-2", group_id=group, member_id="nobody")
    s.ask("unknown member", api, "3-", group_id=group, members=[{"member_id": "nobody"}])
    s.ask("nobody named", api, "3-", group_id=group, members=[])
    s.ask("unknown instance", api, "3-", group_id=group, members=[{"member_id": "", "group_instance_id": "i"}])
    s.ask(
        "member under a wrong instance",
        api,
        "3-",
        group_id=group,
        members=[{"member_id": member, "group_instance_id": "i"}],
    )
    both = [{"member_id": "nobody"}, {"member_id": member, "reason": "done"}, {"member_id": member}]
    s.ask("a stranger, a member, and again", api, 5, group_id=group, members=both)
    s.ask("described when empty", "DescribeGroups", 5, groups=[group])


def static_members(s: Stage) -> None:
    group = s.group()
    first = s.ask("join at once, without an id first", "JoinGroup", 9, **joining(group, instance="i1"))
    one = first.member_id
    s.ask("sync", "SyncGroup", 5, **syncing(group, 1, one, {one: b"all"}, group_instance_id="i1"))
    s.ask("heartbeat", "Heartbeat", [3, 4], group_id=group, generation_id=1, member_id=one, group_instance_id="i1")
    s.ask("heartbeat without the instance", "Heartbeat", 4, group_id=group, generation_id=1, member_id=one)
    s.ask(
        "heartbeat of the instance under another id",
        "Heartbeat",
        [3, 4],
        group_id=group,
        generation_id=1,
        member_id="x",
        group_instance_id="i1",
    )
    s.ask("described", "DescribeGroups", [3, 4, 5, 6], groups=[group])
    again = s.ask(
        "the leader comes back without an id: same generation", "JoinGroup", 9, on="b", **joining(group, instance="i1")
    )
    two = again.member_id
    s.note("under another member id", two != one)
    s.ask("it need not assign", "SyncGroup", 5, on="b", **syncing(group, 1, two, group_instance_id="i1"))
    s.ask(
        "the old one is fenced in its heartbeat",
        "Heartbeat",
        [3, 4],
        group_id=group,
        generation_id=1,
        member_id=one,
        group_instance_id="i1",
    )
    s.ask("in its sync", "SyncGroup", [3, 5], **syncing(group, 1, one, group_instance_id="i1"))
    s.ask("in its join", "JoinGroup", [5, 9], **joining(group, one, instance="i1"))
    s.ask(
        "in its commit",
        "OffsetCommit",
        [7, 9],
        group_id=group,
        generation_id_or_member_epoch=1,
        member_id=one,
        group_instance_id="i1",
        topics=[{"name": s.name("t"), "partitions": [{"partition_index": 0, "committed_offset": 1}]}],
    )
    s.ask("in its leave", "LeaveGroup", [3, 5], group_id=group, members=[{"member_id": one, "group_instance_id": "i1"}])
    s.ask("without an instance it is unknown", "Heartbeat", 4, group_id=group, generation_id=1, member_id=one)
    changed = s.ask(
        "comes back with other protocols: a new generation",
        "JoinGroup",
        9,
        on="c",
        **joining(group, instance="i1", protocols=[RANGE, ROUND]),
        keep=joined_as,
    )
    three = changed.member_id
    s.ask(
        "sync of the new one",
        "SyncGroup",
        5,
        on="c",
        **syncing(group, changed.generation_id, three, {three: b"new"}, group_instance_id="i1"),
    )
    s.ask(
        "leave by the instance alone",
        "LeaveGroup",
        5,
        group_id=group,
        members=[{"member_id": "", "group_instance_id": "i1"}],
    )
    s.ask(
        "heartbeat after that",
        "Heartbeat",
        4,
        group_id=group,
        generation_id=changed.generation_id,
        member_id=three,
        group_instance_id="i1",
    )


def static_leader_old_version(s: Stage) -> None:
    """Before v9 a leader that came back could not be told to skip the assignment."""
    for version in (5, 7, 8):
        s.forget_members()
        group = s.group(f"g.v{version}")
        one = s.send("JoinGroup", version, **joining(group, instance="i1")).member_id
        s.send("SyncGroup", 3, **syncing(group, 1, one, {one: b"all"}, group_instance_id="i1"))
        s.ask("the leader comes back", "JoinGroup", version, on="b", **joining(group, instance="i1"))


def joined_by_static_follower(s: Stage, group: str) -> tuple[str, Pending]:
    """A static leader has heard that a static follower joins; the leader's member id and the parked join."""
    one = s.send("JoinGroup", 9, **joining(group, instance="i1")).member_id
    s.send("SyncGroup", 5, **syncing(group, 1, one, {one: b"all"}, group_instance_id="i1"))
    held = s.post("JoinGroup", 9, on="b", **joining(group, instance="i2"))
    s.until(
        lambda a: a.error_code != 0,
        "Heartbeat",
        4,
        group_id=group,
        generation_id=1,
        member_id=one,
        group_instance_id="i1",
    )
    return one, held


def static_follower(s: Stage) -> None:
    """A static follower that comes back does not disturb the group."""
    group = s.group()
    one, held = joined_by_static_follower(s, group)
    s.ask("leader joins", "JoinGroup", 9, **joining(group, one, instance="i1"), keep=joined_as)
    two = s.take("follower has joined", held, keep=joined_as).member_id
    s.send("SyncGroup", 5, **syncing(group, 2, one, {one: b"1", two: b"2"}, group_instance_id="i1"))
    s.ask("follower syncs", "SyncGroup", 5, on="b", **syncing(group, 2, two, group_instance_id="i2"))
    back = s.ask("the follower comes back", "JoinGroup", 9, on="c", **joining(group, instance="i2"), keep=joined_as)
    s.ask("its part is kept", "SyncGroup", 5, on="c", **syncing(group, 2, back.member_id, group_instance_id="i2"))
    s.ask(
        "the leader did not notice",
        "Heartbeat",
        4,
        group_id=group,
        generation_id=2,
        member_id=one,
        group_instance_id="i1",
    )
    s.ask("a dynamic member with the follower's instance", "JoinGroup", 9, on="b", **joining(group, two, instance="i2"))
    s.ask(
        "both leave at once, by instance",
        "LeaveGroup",
        5,
        group_id=group,
        members=[{"member_id": "", "group_instance_id": i} for i in ("i1", "i2", "i3")],
    )


def replaced_while_joining(s: Stage) -> None:
    """A static member that joins while its older self still waits: the older one is fenced."""
    group = s.group()
    one, held = joined_by_static_follower(s, group)
    newer = s.post("JoinGroup", 9, on="c", **joining(group, instance="i2"))
    s.take("the older join", held)
    s.ask("the leader joins", "JoinGroup", 9, **joining(group, one, instance="i1"), keep=joined_as)
    s.take("the newer join", newer, keep=joined_as)


def expelled(s: Stage) -> None:
    """A member that does not join again within the rebalance timeout is out; so is one that leaves a rebalance."""
    group = s.group()
    one, _ = alone(s, group, rebalance_timeout_ms=700)
    two = member_id(s, group, "b", rebalance_timeout_ms=700)
    held: Pending = s.post("JoinGroup", 9, on="b", **joining(group, two, rebalance_timeout_ms=700))
    s.take("the second is alone after the rebalance timeout", held, keep=joined_as)
    s.ask("the first is unknown", "Heartbeat", 4, group_id=group, generation_id=1, member_id=one)
    s.ask("its sync too", "SyncGroup", 5, **syncing(group, 1, one))
    s.ask("its join too", "JoinGroup", 9, **joining(group, one))


def leader_never_syncs(s: Stage) -> None:
    """After the rebalance timeout a group whose members do not sync starts again without them."""
    group = s.group()
    one = member_id(s, group)
    s.send("JoinGroup", 9, **joining(group, one, rebalance_timeout_ms=500))
    s.until(lambda a: a.error_code != 0, "Heartbeat", 4, group_id=group, generation_id=1, member_id=one)
    s.ask("out", "Heartbeat", 4, group_id=group, generation_id=1, member_id=one)
    s.ask("described", "DescribeGroups", 5, groups=[group], keep=states)


def protocol_selection(s: Stage) -> None:
    """The protocol that every member has and most prefer."""
    group = s.group()
    one, _ = alone(s, group, protocols=[RANGE, ROUND, STICKY])
    two, three = member_id(s, group, "b"), member_id(s, group, "c")
    held2 = s.post("JoinGroup", 9, on="b", **joining(group, two, protocols=[ROUND, RANGE]))
    held3 = s.post("JoinGroup", 9, on="c", **joining(group, three, protocols=[STICKY, ROUND, RANGE]))
    s.until(lambda a: a.error_code != 0, "Heartbeat", 4, group_id=group, generation_id=1, member_id=one)
    s.until(lambda a: len(a.groups[0].members) == 3, "DescribeGroups", 5, groups=[group])
    s.ask("the first joins", "JoinGroup", 9, **joining(group, one, protocols=[RANGE, ROUND, STICKY]), keep=joined_as)
    s.take("the second", held2, keep=joined_as)
    s.take("the third", held3, keep=joined_as)


def other_types(s: Stage) -> None:
    """A group of another protocol type than consumer works alike."""
    group = s.group()
    member = member_id(s, group, protocol_type="connect")
    s.ask("join", "JoinGroup", 9, **joining(group, member, protocol_type="connect"))
    s.ask("sync", "SyncGroup", 5, **syncing(group, 1, member, {member: b"x"}, protocol_type="connect"))
    s.ask("described", "DescribeGroups", 5, groups=[group])
    s.ask("listed", "ListGroups", 5, ours=True)
