"""Lists consumer groups: names first, fifty a page, members and lag of those groups only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ottla.client.client import TopicPartition
from ottla.client.dead_letters import REDRIVE_PREFIX
from ottla.console.group_reading import coordinated, described, ends_of
from ottla.console.page import Context, Page, Paged, View, paged
from ottla.doctor.groups import Listed
from ottla.doctor.snapshot import SHARE, Group


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group. `lag` counts the records behind its committed offsets; None if a leader does not report its end."""

    name: str
    type: str
    state: str
    members: int
    topics: int
    partitions: int
    lag: int | None

    @property
    def is_redrive(self) -> bool:
        """Whether Ottla keeps the progress of redrives in it."""
        return self.name.startswith(REDRIVE_PREFIX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups(View):
    """A page of groups, and what was searched."""

    search: str
    only_inactive: bool
    paged: Paged
    groups: tuple[GroupRow, ...]
    unseen: tuple[str, ...]


def load(context: Context) -> Groups:
    """The groups of one page."""
    search, inactive = context.query.get("q", ""), bool(context.query.get("inactive"))
    unseen: list[str] = []
    listed = coordinated(context, unseen)
    found = matching((each for each in listed if each.type != SHARE), search, inactive=inactive)
    where, shown = paged(found, context.number("page", 1))
    groups = described(context, {each: listed[each] for each in shown}, unseen)
    ends = ends_of(context, {place for group in groups for place in group.committed}, unseen)
    return Groups(
        title="Consumer groups",
        command=context.command("groups", "list"),
        search=search,
        only_inactive=inactive,
        paged=where,
        groups=tuple(row_of(group, ends) for group in groups),
        unseen=tuple(unseen),
    )


def matching(groups: Iterable[Listed], search: str, *, inactive: bool = False) -> list[Listed]:
    """The groups whose name contains the search, by name; only those without members if asked."""
    return sorted(
        (
            each
            for each in groups
            if search.lower() in each.name.lower() and (not inactive or each.state in ("Empty", "Dead"))
        ),
        key=lambda each: each.name,
    )


def row_of(group: Group, ends: Mapping[TopicPartition, int]) -> GroupRow:
    """The row of a group."""
    places = group.committed.keys() | group.owned
    is_known = all(place in ends for place in group.committed)
    return GroupRow(
        group.name,
        group.type,
        group.state,
        len(group.members),
        len({topic for topic, _ in places}),
        len(places),
        sum(max(0, ends[place] - each.offset) for place, each in group.committed.items()) if is_known else None,
    )


PAGE: Final = Page(name="groups", path="/groups", load=load, label="Groups", key="g", refresh_s=10)
