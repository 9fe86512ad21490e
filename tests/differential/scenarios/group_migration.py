"""Groups that change their kind while members live (KIP-848): classic to consumer, back, and who is refused."""

from __future__ import annotations

from typing import Any

from ..consumer import assignment, subscription
from ..stage import Stage
from .consumer_groups import API, consumer_group, going_on, joining, owning, shown
from .groups import joining as joining_classic
from .groups import member_id, syncing


def protocols(*topics: str, names: tuple[str, ...] = ("range",)) -> list[dict[str, Any]]:
    return [{"name": name, "metadata": subscription(list(topics), 1)} for name in names]


class Classic:
    """A member of the classic protocol, alone in its group and the owner of both partitions of the topic."""

    def __init__(self, s: Stage, group: str, topic: str, **more: Any) -> None:
        self.s, self.group, self.topic, self.more = s, group, topic, more
        self.id = "" if "instance" in more else member_id(s, group, protocols=protocols(topic))
        self.join()
        given = {self.id: assignment({topic: [0, 1]})}
        synced = s.send("SyncGroup", 5, **syncing(group, self.generation, self.id, given))
        assert synced.error_code == 0, synced

    def join(self) -> None:
        joined = self.s.send("JoinGroup", 9, **self.joining())
        assert joined.error_code == 0, joined
        self.id, self.generation = joined.member_id, joined.generation_id

    def joining(self) -> dict[str, Any]:
        return joining_classic(self.group, self.id, protocols=protocols(self.topic), **self.more)

    def whose(self, **other: Any) -> dict[str, Any]:
        return {"group_id": self.group, "member_id": self.id, "generation_id": self.generation} | other

    def beat(self, step: str) -> None:
        self.s.ask(step, "Heartbeat", 4, **self.whose())


def without_generations(shown: dict[str, Any]) -> dict[str, Any]:
    """Which partitions a member is given first is a hash table's."""
    shown.pop("assignment", None)
    return shown


def kinds(answer: dict[str, Any]) -> Any:
    """Of a description: state, epochs, and what kind of members there are, not which partitions they have."""
    for group in answer["groups"]:
        for each in group.get("members", []):
            for field in ("member_id", "assignment", "target_assignment", "client_id", "client_host"):
                each.pop(field, None)
        group.get("members", []).sort(key=str)
    return answer


def to_the_new_protocol_and_back(s: Stage) -> None:
    topic = s.create("t", 2)
    group = consumer_group(s)
    old = Classic(s, group, topic)
    old.beat("the classic member is alone")
    first = s.ask("a member of the new protocol joins", API, 1, keep=shown, **joining(group, [topic]))
    s.ask("the group", "ConsumerGroupDescribe", "all", keep=kinds, group_ids=[group])
    s.ask("as a classic group", "DescribeGroups", [5, 6], groups=[group])
    s.ask("listed", "ListGroups", 5, ours=True, types_filter=["consumer"])
    old.beat("the classic member is to join again")
    part = {"partition_index": 0, "committed_offset": 3}
    committing: dict[str, Any] = {"topics": [{"name": topic, "partitions": [part]}]}
    whose: dict[str, Any] = {"group_id": group, "member_id": old.id}
    s.ask("it commits", "OffsetCommit", 8, **whose, generation_id_or_member_epoch=old.generation, **committing)
    s.ask("in a generation before", "OffsetCommit", 8, **whose, generation_id_or_member_epoch=0, **committing)
    s.ask("in one to come", "OffsetCommit", 8, **whose, generation_id_or_member_epoch=99, **committing)
    s.ask("in a generation before, a heartbeat", "Heartbeat", 4, **old.whose(generation_id=0))
    s.ask("in one to come, a heartbeat", "Heartbeat", 4, **old.whose(generation_id=99))
    s.ask("a heartbeat of nobody", "Heartbeat", 4, **old.whose(member_id="nobody"))
    s.ask("it syncs without having joined", "SyncGroup", 5, **syncing(group, old.generation, old.id))
    s.ask("it joins again", "JoinGroup", 9, keep=without_generations, **old.joining())
    old.join()
    s.ask("it syncs", "SyncGroup", 5, keep=without_generations, **syncing(group, old.generation, old.id))
    s.ask("it syncs in another generation", "SyncGroup", 5, **syncing(group, old.generation + 7, old.id))
    s.ask(
        "it syncs by another protocol",
        "SyncGroup",
        5,
        **syncing(group, old.generation, old.id, protocol_name="x"),
    )
    old.beat("its heartbeat")
    s.ask("the new one goes on", API, 1, keep=shown, **going_on(group, first.member_epoch, []))
    s.ask("the group, settled", "ConsumerGroupDescribe", 1, keep=kinds, group_ids=[group])
    s.ask("the new one leaves", API, 1, keep=shown, **going_on(group, -1))
    s.ask("as a classic group again", "DescribeGroups", 6, keep=states, groups=[group])
    s.ask("as a consumer group", "ConsumerGroupDescribe", 1, group_ids=[group])
    old.beat("the classic member is to join again, alone")
    old.join()
    s.ask("it gives itself all", "SyncGroup", 5, keep=error_of,
          **syncing(group, old.generation, old.id, {old.id: assignment({topic: [0, 1]})}))  # fmt: skip
    old.beat("it is alone again")


def states(answer: dict[str, Any]) -> Any:
    return [
        {key: group.get(key) for key in ("error_code", "group_state", "protocol_type")} for group in answer["groups"]
    ]


def who_is_refused(s: Stage) -> None:
    topic = s.create("t", 2)
    workers = s.group("workers")
    worker = s.send("JoinGroup", 9, **joining_classic(workers, protocol_type="connect")).member_id
    s.send("JoinGroup", 9, **joining_classic(workers, worker, protocol_type="connect"))
    s.ask("joins a group of another type", API, 1, keep=shown, **joining(workers, [topic]))
    unreadable = s.group("unreadable")
    odd = [{"name": "range", "metadata": b"?"}]
    it = s.send("JoinGroup", 9, **joining_classic(unreadable, protocols=odd)).member_id
    s.send("JoinGroup", 9, **joining_classic(unreadable, it, protocols=odd))
    s.ask("joins a group that says nothing of topics", API, 1, keep=shown, **joining(unreadable, [topic]))
    group = consumer_group(s)
    s.send(API, 1, **joining(group, [topic]))
    api = "JoinGroup"
    ranged = protocols(topic)
    s.ask("another type joins", api, 9, **joining_classic(group, protocol_type="connect", protocols=ranged))
    s.ask("no protocols", api, 9, **joining_classic(group, protocols=[]))
    s.ask("one that says nothing of topics", api, [3, 9], keep=error_of, **joining_classic(group, protocols=odd))
    s.ask("without an id", api, [3, 4, 9], keep=error_of, **joining_classic(group, protocols=ranged))
    s.ask("an id nobody gave out", api, 9, **joining_classic(group, "made-up", protocols=ranged))
    s.ask("a session too short", api, 9, **joining_classic(group, protocols=ranged, session_timeout_ms=1))
    s.ask("a sync of nobody", "SyncGroup", 5, **syncing(group, 1, "nobody"))
    s.ask("a sync of the new protocol's member", "SyncGroup", 5, **syncing(group, 1, "member-1"))
    s.ask("a heartbeat of it", "Heartbeat", 4, group_id=group, member_id="member-1", generation_id=1)
    s.ask("leaving as it", "LeaveGroup", 5, group_id=group, members=[{"member_id": "member-1"}])


def error_of(answer: dict[str, Any]) -> Any:
    return answer["error_code"]


def static_members(s: Stage) -> None:
    topic = s.create("t", 2)
    group = consumer_group(s)
    old = Classic(s, group, topic, instance="one")
    s.ask("a second joins, of the new protocol", API, 1, keep=shown, **joining(group, [topic], 2, instance_id="two"))
    s.ask("the first is taken over", API, 1, keep=shown, **joining(group, [topic], 1, instance_id="one"))
    old.beat("the one that was taken over")
    s.ask("the group", "ConsumerGroupDescribe", 1, keep=kinds, group_ids=[group])
    s.ask("leaves for a while", API, 1, keep=shown, **going_on(group, -2, who=2, instance_id="two"))
    s.ask("a classic member comes back in its place", "JoinGroup", 9, keep=error_of,
          **joining_classic(group, instance="two", protocols=protocols(topic)))  # fmt: skip
    s.ask("the group with it", "ConsumerGroupDescribe", 1, keep=kinds, group_ids=[group])
    s.ask("the first lets go of one", API, 1, keep=shown, **going_on(group, 1, owning(s, topic, 0), instance_id="one"))


def the_last_one_leaves_the_classic_way(s: Stage) -> None:
    topic = s.create("t", 2)
    group = consumer_group(s)
    old = Classic(s, group, topic)
    s.send(API, 1, **joining(group, [topic]))
    s.ask("the classic member leaves", "LeaveGroup", 5, group_id=group, members=[{"member_id": old.id}])
    s.ask("and again", "LeaveGroup", 5, group_id=group, members=[{"member_id": old.id}])
    s.ask("its heartbeat", "Heartbeat", 4, **old.whose())
    s.ask("the other gets all", API, 1, keep=shown, **going_on(group, 2, []))
    s.ask("the group", "ConsumerGroupDescribe", 1, keep=kinds, group_ids=[group])
    s.ask("the last leaves", API, 1, keep=shown, **going_on(group, -1))
    s.ask("a classic member begins anew", "JoinGroup", 3, keep=error_of,
          **joining_classic(group, protocols=protocols(topic)))  # fmt: skip
    s.ask("listed", "ListGroups", 5, ours=True, types_filter=["classic"])
