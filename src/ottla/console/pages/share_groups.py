"""Lists share groups (queues): names first, fifty a page; members, lag, pauses and dead letters of those only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from ottla.client.dead_letters import DEAD_LETTERS, REDRIVE_PREFIX
from ottla.client.share_groups import PAUSE_CONFIGS, group_configs, pause_in
from ottla.console.group_reading import coordinated, described
from ottla.console.letter_counts import InTopic, letters_in_topics
from ottla.console.page import Context, Page, Paged, View, paged
from ottla.console.pages.groups import matching
from ottla.doctor.snapshot import SHARE, Group
from ottla.doctor.words import count

Configs: TypeAlias = dict[str, str | None]


@dataclass(frozen=True, slots=True)
class ShareGroupRow:
    """A share group. `lag` counts the records that are not done; None if a partition does not report it.

    `dead_letters` counts the records in the group's dead-letter topic, and `sent_back` those that went back. Both are
    None if the topic could not be asked. `letters_topic` is None without one, or if the configs could not be read.
    """

    name: str
    state: str
    members: int
    topics: int
    partitions: int
    lag: int | None
    is_paused: bool
    letters_topic: str | None
    dead_letters: int | None
    sent_back: int | None


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
    configs = group_configs(context.client, [group.name for group in groups], (*PAUSE_CONFIGS, DEAD_LETTERS))
    topics = {name: topic for name, each in configs.items() if (topic := each.get(DEAD_LETTERS))}
    redrivers = {each.name: node_id for each, node_id in listed.items() if each.name.startswith(REDRIVE_PREFIX)}
    letters = letters_in_topics(context, topics, redrivers, unseen)
    if unknown := len(groups) - len(configs):
        unseen.append(f"Configs of {count(unknown, 'group')}.")
    return ShareGroups(
        title="Share groups",
        command=context.command("share-groups", "list"),
        search=search,
        only_inactive=inactive,
        paged=where,
        groups=tuple(row_of(group, configs.get(group.name), letters.get(group.name)) for group in groups),
        unseen=tuple(unseen),
    )


def row_of(group: Group, configs: Configs | None, letters: InTopic | None) -> ShareGroupRow:
    """The row of a share group; None for what could not be asked."""
    places = group.committed.keys() | group.owned
    lags = [each.lag for each in group.committed.values()]
    topic = None if configs is None else configs.get(DEAD_LETTERS) or None
    if configs is not None and topic is None:
        letters = InTopic(0, 0)
    return ShareGroupRow(
        group.name,
        group.state,
        len(group.members),
        len({topic for topic, _ in places}),
        len(places),
        None if None in lags else sum(each for each in lags if each is not None),
        configs is not None and pause_in(configs) is not None,
        topic,
        None if letters is None else letters.records,
        None if letters is None else letters.sent_back,
    )


PAGE: Final = Page(name="share_groups", path="/share-groups", load=load, label="Share groups", key="s", refresh_s=10)
