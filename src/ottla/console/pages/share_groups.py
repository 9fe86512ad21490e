"""Lists share groups (queues): names first, fifty a page, members, lag and pauses of those groups only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ottla.client.share_groups import Pause, pauses_of
from ottla.console.group_reading import coordinated, described
from ottla.console.page import Context, Page, Paged, View, paged
from ottla.console.pages.groups import matching
from ottla.doctor.snapshot import SHARE, Group


@dataclass(frozen=True, slots=True)
class ShareGroupRow:
    """A share group. `lag` counts the records that are not done; None if a partition does not report it."""

    name: str
    state: str
    members: int
    topics: int
    partitions: int
    lag: int | None
    is_paused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroups(View):
    """A page of share groups, and what was searched."""

    search: str
    only_inactive: bool
    paged: Paged
    groups: tuple[ShareGroupRow, ...]
    unseen: tuple[str, ...]


def load(context: Context) -> ShareGroups:
    """The share groups of one page."""
    search, inactive = context.query.get("q", ""), bool(context.query.get("inactive"))
    unseen: list[str] = []
    listed = coordinated(context, unseen)
    found = matching((each for each in listed if each.type == SHARE), search, inactive=inactive)
    where, shown = paged(found, context.number("page", 1))
    groups = described(context, {each: listed[each] for each in shown}, unseen)
    paused = pauses_of(context.client, [group.name for group in groups])
    return ShareGroups(
        title="Share groups",
        command=context.command("share-groups", "list"),
        search=search,
        only_inactive=inactive,
        paged=where,
        groups=tuple(row_of(group, paused) for group in groups),
        unseen=tuple(unseen),
    )


def row_of(group: Group, paused: Mapping[str, Pause]) -> ShareGroupRow:
    """The row of a share group."""
    places = group.committed.keys() | group.owned
    lags = [each.lag for each in group.committed.values()]
    return ShareGroupRow(
        group.name,
        group.state,
        len(group.members),
        len({topic for topic, _ in places}),
        len(places),
        None if None in lags else sum(each for each in lags if each is not None),
        group.name in paused,
    )


PAGE: Final = Page(name="share_groups", path="/share-groups", load=load, label="Share groups", key="s", refresh_s=10)
