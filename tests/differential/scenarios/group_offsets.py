"""OffsetCommit, OffsetFetch, OffsetDelete."""

from __future__ import annotations

import uuid
from typing import Any

from ..consumer import subscription
from ..stage import Stage
from .groups import alone, joining


def committing(
    group: str,
    name: str,
    *entries: tuple[int, int],
    metadata: str | None = "m",
    topic_id: bytes | None = None,
    **more: Any,
) -> dict[str, Any]:
    where: dict[str, Any] = {"name": name} if topic_id is None else {"topic_id": topic_id}
    parts = [{"partition_index": p, "committed_offset": o, "committed_metadata": metadata} for p, o in entries]
    body = {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [where | {"partitions": parts}],
    }
    return body | more


def fetching(
    version: int, group: str, names: dict[str, list[int]] | None, ids: dict[str, bytes] | None = None
) -> dict[str, Any]:
    """The request in each version's form; `names` None asks for everything."""
    rows = (
        None
        if names is None
        else [
            ({"topic_id": ids[n]} if version >= 10 and ids else {"name": n}) | {"partition_indexes": p}
            for n, p in names.items()
        ]
    )
    if version < 8:
        return {"group_id": group, "topics": rows}
    return {"groups": [{"group_id": group, "topics": rows}]}


def round_trip(s: Stage) -> None:
    name, group = s.create("t", 2), s.group()
    ids = {name: s.topic_id(name)}
    for version in s.versions("OffsetCommit"):
        topic_id = ids[name] if version >= 10 else None
        s.ask(
            "commit", "OffsetCommit", version, **committing(group, name, (0, 100 + version), (1, 7), topic_id=topic_id)
        )
    for what, wanted in {
        "one": {name: [0]},
        "both": {name: [0, 1]},
        "one without": {name: [0, 9]},
        "twice": {name: [1, 1]},
    }.items():
        s.ask(f"fetch {what}", "OffsetFetch", "all", make=lambda v, w=wanted: fetching(v, group, w, ids))
    s.ask("fetch everything", "OffsetFetch", "2-", make=lambda v: fetching(v, group, None))
    s.ask("fetch nothing", "OffsetFetch", "all", make=lambda v: fetching(v, group, {}))
    s.ask("fetch an unknown topic", "OffsetFetch", "1-9", make=lambda v: fetching(v, group, {s.name("nope"): [0]}))
    s.ask("fetch an unknown id", "OffsetFetch", 10, **fetching(10, group, {"x": [0]}, {"x": uuid.UUID(int=3).bytes}))
    s.ask("fetch the zero id", "OffsetFetch", 10, **fetching(10, group, {"x": [0]}, {"x": bytes(16)}))
    s.ask(
        "fetch of an unknown group", "OffsetFetch", "all", make=lambda v: fetching(v, s.name("other"), {name: [0]}, ids)
    )
    s.ask("everything of an unknown group", "OffsetFetch", "2-", make=lambda v: fetching(v, s.name("other"), None))
    s.ask("fetch of the empty group", "OffsetFetch", "all", make=lambda v: fetching(v, "", {name: [0]}, ids))
    s.ask(
        "require stable",
        "OffsetFetch",
        "7-",
        make=lambda v: fetching(v, group, {name: [0]}, ids) | {"require_stable": True},
    )


def several_groups(s: Stage) -> None:
    name = s.create()
    one, two = s.group("one"), s.group("two")
    s.send("OffsetCommit", 9, **committing(one, name, (0, 1)))
    s.send("OffsetCommit", 9, **committing(two, name, (0, 2), metadata=None))
    rows = [{"name": name, "partition_indexes": [0]}]
    every = [{"group_id": g, "topics": rows} for g in (one, two, s.name("three"))]
    s.ask("three groups", "OffsetFetch", "8-9", groups=every)
    s.ask("group twice", "OffsetFetch", "8-9", groups=[every[0], every[0]])
    s.ask("no groups", "OffsetFetch", "8-", groups=[])
    s.ask("a member id that is none", "OffsetFetch", 9, groups=[every[0] | {"member_id": "x", "member_epoch": 1}])
    s.ask("a member id without epoch", "OffsetFetch", 9, groups=[every[0] | {"member_id": "x"}])


def values(s: Stage) -> None:
    name, group = s.create(), s.group()

    def kept(what: str, *entries: tuple[int, int], **more: Any) -> None:
        s.ask(what, "OffsetCommit", [2, 9], **committing(group, name, *entries, **more))
        s.ask(f"kept: {what}", "OffsetFetch", 9, **fetching(9, group, {name: [0]}))

    kept("offset 0", (0, 0))
    kept("negative offset", (0, -1))
    kept("far negative offset", (0, -500))
    kept("past the end", (0, 1 << 50))
    kept("no metadata", (0, 5), metadata=None)
    kept("empty metadata", (0, 6), metadata="")
    kept("longest metadata", (0, 7), metadata="m" * 4096)
    kept("metadata too long", (0, 8), metadata="m" * 4097)
    kept("partition twice", (0, 9), (0, 10))
    kept("unknown partition", (9, 1))
    kept("negative partition", (-1, 1))
    s.ask(
        "leader epoch",
        "OffsetCommit",
        9,
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[
            {"name": name, "partitions": [{"partition_index": 0, "committed_offset": 3, "committed_leader_epoch": 5}]}
        ],
    )
    s.ask("kept leader epoch", "OffsetFetch", [4, 5, 9], make=lambda v: fetching(v, group, {name: [0]}))


def commit_refused(s: Stage) -> None:
    name, group, api = s.create(), s.group(), "OffsetCommit"
    raw = s.topic_id(name)
    s.ask("unknown topic", api, "2-9", **committing(group, s.name("nope"), (0, 1)))
    s.ask("illegal name", api, [2, 9], **committing(group, "a b", (0, 1)))
    s.ask("unknown id", api, 10, **committing(group, name, (0, 1), topic_id=uuid.UUID(int=4).bytes))
    s.ask("zero id", api, 10, **committing(group, name, (0, 1), topic_id=bytes(16)))
    s.ask("nothing", api, "all", group_id=s.name("empty"), generation_id_or_member_epoch=-1, member_id="", topics=[])
    s.ask(
        "a generation, unknown group",
        api,
        "2-9",
        **committing(s.name("unk"), name, (0, 1), generation_id_or_member_epoch=3, member_id="m"),
    )
    s.ask(
        "a generation, unknown group",
        api,
        10,
        **committing(s.name("unk"), name, (0, 1), topic_id=raw, generation_id_or_member_epoch=3, member_id="m"),
    )
    s.ask(
        "a member without generation, unknown group",
        api,
        [2, 9],
        **committing(s.name("un2"), name, (0, 1), member_id="m"),
    )
    s.ask(
        "an instance without generation, unknown group",
        api,
        [7, 9],
        **committing(s.name("un3"), name, (0, 1), group_instance_id="i"),
    )
    s.ask("the empty group", api, [2, 9], **committing("", name, (0, 1)))
    s.send("DeleteGroups", groups_names=[""])
    s.ask("generation -2", api, [2, 9], **committing(s.name("un4"), name, (0, 1), generation_id_or_member_epoch=-2))
    s.ask(
        "a good and an unknown topic",
        api,
        9,
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[
            {"name": name, "partitions": [{"partition_index": 0, "committed_offset": 1}]},
            {"name": s.name("nope"), "partitions": [{"partition_index": 0, "committed_offset": 1}]},
        ],
    )


def commit_as_member(s: Stage) -> None:
    name, group, api = s.create(), s.group(), "OffsetCommit"
    raw = s.topic_id(name)
    member, generation = alone(s, group)

    def commit(what: str, generation_id: int, member_id: str, **more: Any) -> None:
        s.ask(
            what,
            api,
            "all",
            make=lambda v: committing(
                group,
                name,
                (0, 5),
                topic_id=raw if v >= 10 else None,
                generation_id_or_member_epoch=generation_id,
                member_id=member_id,
                **more,
            ),
        )

    commit("good", generation, member)
    commit("old generation", generation - 1, member)
    commit("generation to come", generation + 1, member)
    commit("unknown member", generation, "nobody")
    commit("without a generation", -1, member)
    commit("as nobody, while there are members", -1, "")
    commit("no member, a generation", generation, "")
    s.ask(
        "instance of a dynamic member",
        api,
        [7, 9],
        **committing(
            group, name, (0, 5), generation_id_or_member_epoch=generation, member_id=member, group_instance_id="i"
        ),
    )
    s.send("JoinGroup", 9, **joining(group, member))
    commit("between join and sync", generation + 1, member)
    s.send("LeaveGroup", 5, group_id=group, members=[{"member_id": member}])
    commit("after leaving", generation, member)
    commit("as nobody, in the empty group", -1, "")


def retention(s: Stage) -> None:
    name, group = s.create(), s.group()
    for kept_ms in (-1, 0, 1000):
        s.ask(
            f"retention {kept_ms}", "OffsetCommit", "2-4", **committing(group, name, (0, 1), retention_time_ms=kept_ms)
        )


def delete(s: Stage) -> None:
    name, group, api = s.create("t", 3), s.group(), "OffsetDelete"

    def deleting(target: str, topic: str, *partitions: int) -> dict[str, Any]:
        return {
            "group_id": target,
            "topics": [{"name": topic, "partitions": [{"partition_index": p} for p in partitions]}],
        }

    s.ask("unknown group", api, **deleting(s.name("unk"), name, 0))
    s.ask("empty group name", api, **deleting("", name, 0))
    s.send("OffsetCommit", 9, **committing(group, name, (0, 1), (1, 2), (2, 3)))
    s.ask("one", api, **deleting(group, name, 0))
    s.ask("what is left", "OffsetFetch", 9, **fetching(9, group, None))
    s.ask("the same again", api, **deleting(group, name, 0))
    s.ask("unknown partition", api, **deleting(group, name, 9))
    s.ask("unknown topic", api, **deleting(group, s.name("nope"), 0))
    s.ask("twice", api, **deleting(group, name, 1, 1))
    s.ask("nothing", api, group_id=group, topics=[])
    s.ask("no partitions", api, **deleting(group, name))


def delete_while_in_use(s: Stage) -> None:
    """Offsets of a topic that a consumer group reads can't be deleted; those of another topic can."""
    read, other, group = s.create("read"), s.create("other"), s.group()
    protocol = [{"name": "range", "metadata": subscription([read])}]
    member, generation = alone(s, group, protocols=protocol)
    for name in (read, other):
        s.send(
            "OffsetCommit",
            9,
            **committing(group, name, (0, 1), generation_id_or_member_epoch=generation, member_id=member),
        )
    rows = [{"name": n, "partitions": [{"partition_index": 0}]} for n in (read, other)]
    s.ask("one in use, one not", "OffsetDelete", group_id=group, topics=rows)
    s.ask("what is left", "OffsetFetch", 9, **fetching(9, group, None))
    s.send("LeaveGroup", 5, group_id=group, members=[{"member_id": member}])
    s.ask("after everybody left", "OffsetDelete", group_id=group, topics=rows)


def topic_deleted(s: Stage) -> None:
    """With a topic go the offsets committed for it."""
    name, kept, group = s.create("gone"), s.create("kept"), s.group()
    for topic in (name, kept):
        s.send("OffsetCommit", 9, **committing(group, topic, (0, 1)))
    s.send("DeleteTopics", topics=[{"name": name}], timeout_ms=10000)
    s.settle()
    everything = fetching(9, group, None)
    s.until(lambda a: len(a.groups[0].topics) == 1, "OffsetFetch", 9, **everything)
    s.ask("what is left", "OffsetFetch", 9, **everything)
