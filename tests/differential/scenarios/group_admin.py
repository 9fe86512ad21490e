"""DescribeGroups, ListGroups, DeleteGroups."""

from __future__ import annotations

from ..stage import Stage
from .group_offsets import committing
from .groups import alone


def describe(s: Stage) -> None:
    api, name = "DescribeGroups", s.create()
    busy, empty, unknown = s.group("busy"), s.group("empty"), s.name("unknown")
    alone(s, busy)
    s.send("OffsetCommit", 9, **committing(empty, name, (0, 1)))
    s.ask("a stable one", api, "all", groups=[busy])
    s.ask("one with offsets only", api, "all", groups=[empty])
    s.ask("an unknown one", api, "all", groups=[unknown])
    s.ask("the empty name", api, "all", groups=[""])
    s.ask("three", api, "all", groups=[busy, empty, unknown])
    s.ask("one twice", api, "all", groups=[busy, busy])
    s.ask("nothing", api, "all", groups=[])
    s.ask("authorized operations", api, "3-", groups=[busy, unknown], include_authorized_operations=True)


def listing(s: Stage) -> None:
    api, name = "ListGroups", s.create()
    busy, empty = s.group("busy"), s.group("empty")
    alone(s, busy)
    s.send("OffsetCommit", 9, **committing(empty, name, (0, 1)))
    s.ask("all", api, "all", ours=True)
    for states in (
        ["Stable"],
        ["Empty"],
        ["stable"],
        ["STABLE", "Empty"],
        ["Dead"],
        ["PreparingRebalance"],
        ["NoSuchState"],
        [""],
        ["Unknown"],
    ):
        s.ask(f"states {states}", api, "4-", states_filter=states, ours=True)
    for types in (["classic"], ["Classic"], ["consumer"], ["share"], ["streams"], ["nosuch"], [""], ["unknown"]):
        s.ask(f"types {types}", api, 5, types_filter=types, ours=True)
    s.ask("state and type", api, 5, states_filter=["Empty"], types_filter=["classic"], ours=True)
    s.ask("state and another type", api, 5, states_filter=["Empty"], types_filter=["consumer"], ours=True)


def delete(s: Stage) -> None:
    api, name = "DeleteGroups", s.create()
    for version in s.versions(api):
        group = s.group(f"gone.v{version}")
        s.send("OffsetCommit", 9, **committing(group, name, (0, 1)))
        s.ask("empty group with offsets", api, version, groups_names=[group])
        s.ask("again", api, version, groups_names=[group])
        s.ask("it is gone", "DescribeGroups", 6, groups=[group])
        s.ask("so are its offsets", "OffsetFetch", 9, groups=[{"group_id": group, "topics": None}])
    busy = s.group("busy")
    member, _ = alone(s, busy)
    s.ask("one with members", api, "all", groups_names=[busy])
    s.ask("unknown", api, "all", groups_names=[s.name("unk")])
    s.ask("the empty name", api, "all", groups_names=[""])
    s.ask("nothing", api, "all", groups_names=[])
    s.send("LeaveGroup", 5, group_id=busy, members=[{"member_id": member}])
    s.ask("twice the same, and an unknown one", api, 2, groups_names=[busy, busy, s.name("unk")])
