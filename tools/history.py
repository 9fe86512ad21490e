"""What real clients were told while nodes failed, and what is wrong with it: the checker of the crash loops.

In the way of Jepsen's Kafka workload. Every record has a label, its writer's name and a number that grows, so that who
finds it knows what it is. Clients write down what they sent, what they were told of it, what they read; when all is
quiet the logs are read from their beginning. Pure: no clock, no client; each check returns sentences, one for each kind
of fault in each place, none where all is well.

Found are, of records: acknowledged and lost (what a committed transaction wrote too), written twice, out of their
writer's order, never sent, elsewhere than was acknowledged, of an aborted transaction (dirty), of a transaction of
which another part is missing (torn); of readers: offsets that go back or leave out records, something else than the log
has there in the end, nothing of what the group had to read; of committed offsets: lower than was acknowledged before,
higher than anybody has committed; of share groups: what was accepted and comes again, or is accepted twice, what nobody
has accepted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import NamedTuple, TypeAlias

Place: TypeAlias = tuple[str, int]
"""Topic and partition."""
Label: TypeAlias = tuple[str, int]
"""A record's writer, and its number: the first is 0. The records of one transaction share a number."""


class Record(NamedTuple):
    """A record where somebody found it."""

    offset: int
    label: Label


class Fate(Enum):
    """What the writer of a record was told."""

    KEPT = "acknowledged, or its transaction committed"
    DROPPED = "its transaction aborted"
    UNKNOWN = "nothing"


@dataclass
class Run:
    """What a reader was given of one partition, in the order in which it came, since it took its place there.

    `group`: whose committed offset it began at, at that moment in seconds; none: it began at offset 0."""

    reader: str
    place: Place
    group: str = ""
    began: float = 0.0
    records: list[Record] = field(default_factory=list)


class Commit(NamedTuple):
    """One commit of one partition's offset. `ended`: when it was answered without an error, None if it was not."""

    group: str
    place: Place
    offset: int
    began: float
    ended: float | None


class Look(NamedTuple):
    """An answer to who asked for a committed offset, -1 for none."""

    group: str
    place: Place
    offset: int
    began: float
    ended: float


class Handed(NamedTuple):
    """A record was given to a member of a share group which began at `life`: it can't have been given it earlier."""

    place: Place
    offset: int
    life: float


class Accepted(NamedTuple):
    """A record was accepted. `ended`: when that was confirmed, None if nobody knows."""

    place: Place
    offset: int
    ended: float | None


@dataclass
class History:
    """One round. `sent`: every record with its fate; `told`: where a record stands, as far as its writer was told;
    `logs`: what a reader of committed records finds in the end. `groups`: the topic of each group of consumers, and
    `shared` those of share groups: nothing in them may be left out."""

    sent: dict[Place, dict[Label, Fate]] = field(default_factory=lambda: defaultdict(dict))
    told: dict[Place, dict[Label, int]] = field(default_factory=lambda: defaultdict(dict))
    logs: dict[Place, list[Record]] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    handed: list[Handed] = field(default_factory=list)
    accepted: list[Accepted] = field(default_factory=list)
    groups: dict[str, str] = field(default_factory=dict)
    shared: set[str] = field(default_factory=set)


def check(history: History) -> list[str]:
    """Everything that is wrong."""
    return [
        *check_logs(history),
        *check_whole(history),
        *check_runs(history),
        *check_groups(history),
        *check_commits(history),
        *check_shares(history),
    ]


def check_logs(history: History) -> Iterator[str]:
    """Hold every log against what its writers know."""
    for place, records in history.logs.items():
        sent, where = history.sent[place], _named(place)
        labels = [record.label for record in records]
        there = set(labels)
        yield from _some(
            where,
            "acknowledged and lost",
            (each for each, fate in sent.items() if fate is Fate.KEPT and each not in there),
        )
        yield from _some(where, "there twice", _twice(labels))
        yield from _some(where, "behind a later one of its writer", _overtaken(labels))
        yield from _some(where, "never sent", (each for each in labels if each not in sent))
        yield from _some(where, "of an aborted transaction", (each for each in there if sent.get(each) is Fate.DROPPED))
        told = history.told[place]
        # Below 0: a retry that the broker knew again, or what librdkafka takes for written as a later batch was.
        moved = (f"{r}, not {told[r.label]}" for r in records if 0 <= told.get(r.label, -1) != r.offset)
        yield from _some(where, "elsewhere than was acknowledged", moved)
        offsets = [record.offset for record in records]
        yield from _some(where, "at an offset below the one before", (b for a, b in pairwise(offsets) if b <= a))


def check_whole(history: History) -> Iterator[str]:
    """Of a transaction everything is there, or nothing: labels that were sent to several partitions of a topic."""
    there = {place: {record.label for record in records} for place, records in history.logs.items()}
    wanted: dict[tuple[str, Label], list[Place]] = defaultdict(list)
    for place in history.logs:
        for label in history.sent[place]:
            wanted[place[0], label].append(place)
    torn: dict[str, list[Label]] = defaultdict(list)
    for (topic, label), places in wanted.items():
        if len({label in there[place] for place in places}) > 1:
            torn[topic].append(label)
    for topic, labels in torn.items():
        yield from _some(topic, "in one partition and not in the other", labels)


def check_runs(history: History) -> Iterator[str]:
    """What a reader is given goes forward, leaves out nothing, and is what the log has there in the end."""
    logs = {place: {record.offset: record.label for record in records} for place, records in history.logs.items()}
    follows = {place: {a.offset: b.offset for a, b in pairwise(records)} for place, records in history.logs.items()}
    for run in history.runs:
        where = f"{run.reader} at {_named(run.place)}"
        log, after = logs[run.place], follows[run.place]
        yield from _some(
            where, "read, and not there in the end", (r for r in run.records if log.get(r.offset) != r.label)
        )
        dropped = history.sent[run.place]
        yield from _some(
            where, "read, of an aborted transaction", (r for r in run.records if dropped.get(r.label) is Fate.DROPPED)
        )
        steps = [(a.offset, b.offset) for a, b in pairwise(run.records)]
        yield from _some(where, "read after a later offset", (step for step in steps if step[1] <= step[0]))
        left_out = (step for step in steps if step[0] in after and after[step[0]] < step[1])
        yield from _some(where, "with records between them that were left out", left_out)
        first = history.logs[run.place][:1]
        if not run.group and first and run.records and run.records[0].offset > first[0].offset:
            yield f"{where}: the first record read is at {run.records[0].offset}, the log has one at {first[0].offset}"


def check_groups(history: History) -> Iterator[str]:
    """The members of a group, taken together, have read everything."""
    for group, topic in history.groups.items():
        read: dict[Place, set[int]] = defaultdict(set)
        for run in history.runs:
            if run.group == group:
                read[run.place].update(record.offset for record in run.records)
        for place, records in history.logs.items():
            if place[0] == topic:
                unread = (r for r in records if r.offset not in read[place])
                yield from _some(f"{group} at {_named(place)}", "that no member has read", unread)


def check_commits(history: History) -> Iterator[str]:
    """Who asks for a committed offset, or begins at it, finds none that is lower than was known when it asked, and none
    that nobody has committed. Members commit what they have read, so their offsets only grow."""
    commits: dict[tuple[str, Place], list[Commit]] = defaultdict(list)
    looks: dict[tuple[str, Place], list[Look]] = defaultdict(list)
    for commit in history.commits:
        commits[commit.group, commit.place].append(commit)
    for look in history.looks:
        looks[look.group, look.place].append(look)
    for run in history.runs:
        if run.group and run.records:
            key = run.group, run.place
            began_at = Look(*key, run.records[0].offset, run.began, float("inf"))
            yield from _check_look(began_at, commits[key], looks[key])
    for key, asked in looks.items():
        for look in asked:
            yield from _check_look(look, commits[key], asked)


def _check_look(look: Look, commits: list[Commit], looks: list[Look]) -> Iterator[str]:
    known = [each.offset for each in commits if each.ended is not None and each.ended <= look.began]
    known += [each.offset for each in looks if each.ended <= look.began]
    where = f"{look.group} at {_named(look.place)}"
    if look.offset < max(known, default=-1):
        yield f"{where}: the committed offset went back from {max(known)} to {look.offset}"
    highest = max((each.offset for each in commits if each.began <= look.ended), default=-1)
    if look.offset > max(highest, 0):
        yield f"{where}: {look.offset} is committed, and members committed no more than {highest}"


def check_shares(history: History) -> Iterator[str]:
    """What is accepted does not come again, to nobody who began to ask after that; all that there is was given out."""
    accepted: dict[tuple[Place, int], list[float | None]] = defaultdict(list)
    for each in history.accepted:
        accepted[each.place, each.offset].append(each.ended)
    confirmed = {key: [end for end in ends if end is not None] for key, ends in accepted.items()}
    yield from _some("share group", "accepted twice", (key for key, ends in confirmed.items() if len(ends) > 1))
    again = (
        (each.place, each.offset)
        for each in history.handed
        if any(end <= each.life for end in confirmed.get((each.place, each.offset), ()))
    )
    yield from _some("share group", "accepted, and given out again", again)
    for place, records in history.logs.items():
        if place[0] in history.shared:
            left = (r for r in records if (place, r.offset) not in accepted)
            yield from _some(f"share group at {_named(place)}", "that nobody has accepted", left)


# ---- words ---------------------------------------------------------------------------------------------------------


def _named(place: Place) -> str:
    return f"{place[0]}-{place[1]}"


def _some(where: str, what: str, found: Iterable[object]) -> Iterator[str]:
    """One sentence for all that was found of a kind."""
    these = list(found)
    if these:
        yield f"{where}: {len(these)} {what}, the first is {these[0]}"


def _twice(labels: list[Label]) -> Iterator[Label]:
    known: set[Label] = set()
    for label in labels:
        if label in known:
            yield label
        known.add(label)


def _overtaken(labels: list[Label]) -> Iterator[Label]:
    newest: dict[str, int] = {}
    for writer, number in labels:
        if number < newest.get(writer, -1):
            yield writer, number
        newest[writer] = max(number, newest.get(writer, -1))
