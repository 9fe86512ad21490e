"""Checks what groups did in the last minutes: rebalances, commits, clocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from ottla.doctor.finding import Check, Finding, Severity
from ottla.doctor.observed import LEFT, REBALANCE_TIMEOUT, SESSION, GroupChange
from ottla.doctor.snapshot import Commit, Evidence, Generation, GroupMember
from ottla.doctor.words import count, duration, names, place

LOOP: Final = 3
"""Generations with a member that goes and comes, from which on a group rebalances in a loop."""
SKEW_MS: Final = 5_000
"""A clock may be this far ahead."""
REWIND_MIN: Final = 100
"""A position may go back by fewer records, as when a partition moves before its last commit."""

CAUSES: Final = {LEFT: "it left", SESSION: "its session ended", REBALANCE_TIMEOUT: "it exceeded its rebalance timeout"}
"""Causes for which a group loses a member."""


def rebalance_loop(evidence: Evidence) -> Iterator[Finding]:
    """Classic groups whose members leave and return again and again."""
    changes = evidence.last.changes()
    for group, generations in sorted(evidence.last.generations.items()):
        returns = _returns(generations)
        if len(generations) <= LOOP or not returns:
            continue
        member, times = max(returns.items(), key=lambda each: (each[1], each[0]))
        if times < LOOP - 1:
            continue
        last = max((rows[-1].at_ms for (name, _), rows in evidence.last.commits.items() if name == group), default=None)
        causes = _causes(changes.get(group, []), member)
        pause = "" if last is None else f" The last commit was {_ago(evidence, last)}."
        yield Finding(
            Severity.WARNING,
            group,
            f"{group} rebalanced {len(generations) - 1} times in "
            f"{duration((evidence.last.at_ms - generations[0].at_ms) / 1000)}: {member.client_id} ({member.host}) left "
            f"and returned {count(times, 'time')}{causes}.{pause}",
            f"if its polls take longer than max.poll.interval.ms ({duration(member.timeout_ms / 1000)}): fewer "
            "records a poll (max.poll.records), or more time",
            None if causes else "the client's log, which names the cause",
        )


def _causes(changes: list[GroupChange], member: GroupMember) -> str:
    """Why the group lost this member, as far as its coordinator remembers that: " (its session ended 2 times)"."""
    found = Counter(
        f"it left: {each.reason}" if each.cause == LEFT and each.reason else CAUSES[each.cause]
        for each in changes
        if each.cause in CAUSES and (each.client_id, each.host) == (member.client_id, member.host)
    )
    texts = [f"{cause}, {count(times, 'time')}" for cause, times in found.most_common(3)]
    return f" ({'; '.join(texts)})" if texts else ""


def _returns(generations: tuple[Generation, ...]) -> dict[GroupMember, int]:
    """How often each client was absent from a generation and present in a later one."""
    found: dict[GroupMember, int] = {}
    for one, two in pairwise(generations):
        for member in two.members - one.members:
            if any(member in each.members for each in generations if each.number < one.number):
                found[member] = found.get(member, 0) + 1
    return found


def position_went_back(evidence: Evidence) -> Iterator[Finding]:
    """Groups that read records again."""
    for (group, where), commits in sorted(evidence.last.commits.items()):
        back = _largest_step_back(commits)
        if back is not None and back[0].offset - back[1].offset >= REWIND_MIN:
            yield Finding(
                Severity.NOTE,
                group,
                f"{group}'s position in {place(where)} went back by {back[0].offset - back[1].offset:,} records "
                f"{_ago(evidence, back[1].at_ms)}: it reads these again.",
                "an operator's reset, a consumer that seeks, or two groups that share a name",
            )


def _largest_step_back(commits: tuple[Commit, ...]) -> tuple[Commit, Commit] | None:
    steps = [(one, two) for one, two in pairwise(commits) if two.offset < one.offset]
    return max(steps, key=lambda each: each[0].offset - each[1].offset, default=None)


def clock_ahead(evidence: Evidence) -> Iterator[Finding]:
    """Coordinators whose clock is ahead of this machine's."""
    ahead: dict[str, int] = {}
    for (group, _), commits in evidence.last.commits.items():
        by_ms = commits[-1].at_ms - evidence.last.at_ms
        if by_ms > SKEW_MS:
            ahead[group] = max(by_ms, ahead.get(group, 0))
    if ahead:
        yield Finding(
            Severity.WARNING,
            "clocks",
            f"The clock of the coordinator of {names(sorted(ahead))} is {duration(max(ahead.values()) / 1000)} ahead "
            "of this machine's: retention by time and timeouts of transactions need equal clocks.",
            "synchronize the clocks of all machines (chrony, systemd-timesyncd)",
        )


def _ago(evidence: Evidence, at_ms: int) -> str:
    return f"{duration(max(0, evidence.last.at_ms - at_ms) / 1000)} ago"


CHECKS: Final = (
    Check("rebalance-loop", "classic groups that rebalance again and again", rebalance_loop),
    Check("position-went-back", "groups that read records again", position_went_back),
    Check("clock-ahead", "coordinators whose clock is ahead", clock_ahead),
)
