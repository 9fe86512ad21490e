"""Records what clients learn from answers: acknowledged records, records seen, owners of partitions, committed offsets.

Every entry is checked against all earlier ones when it is recorded, so a broken promise is found at the step that
breaks it. The history has only what clients see on the wire; the checkers that look into the node are in `checkers`.

Promises checked here:

- An acknowledged record is at its offset, and an offset that was seen never shows anything else.
- In one generation of a group a partition has one owner, and a member of an older generation cannot commit.
- A fetched committed offset is the newest acknowledged one, or one whose commit was in flight since.

`forget_beyond` is the effect of a power cut on promises that were not fsynced (page-cache durability): they end, and
the log may show new records at their offsets.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ottla.sim.clients.batches import ReadBatch
from ottla.sim.kernel.clock import Micros
from ottla.sim.kernel.trace import InvariantError

TopicPartition: TypeAlias = tuple[str, int]
NOTHING_COMMITTED = -1
"""OffsetFetch's answer if there is no committed offset."""

Content: TypeAlias = tuple[bytes | None, bytes | None]
"""Key and value of a record."""


@dataclass(frozen=True, slots=True)
class TopicRule:
    """The rules of a topic. `dense`: no record is ever removed. `compacted`: the last value per key stays.
    `transactional`: it has records of transactions."""

    name: str
    partitions: int
    dense: bool = False
    compacted: bool = False
    transactional: bool = False

    @property
    def sparse(self) -> bool:
        """Records may go, by retention or by request."""
        return not self.dense and not self.compacted


@dataclass(slots=True)
class Commit:
    """One OffsetCommit of one partition. `ended_us` None: in flight, or with an unknown outcome."""

    offset: int
    begun_us: Micros
    ended_us: Micros | None = None
    refused: bool = False


@dataclass(slots=True)
class GroupHistory:
    """A group: the newest generation that a SyncGroup answer proved durable, and its owners by generation."""

    generation: int
    owners: dict[tuple[int, TopicPartition], str]
    commits: dict[TopicPartition, list[Commit]]


class History:
    """See the module."""

    def __init__(self, rules: Iterable[TopicRule], *, groups_vanish: bool) -> None:
        self.rules = {rule.name: rule for rule in rules}
        self.groups_vanish = groups_vanish
        """Whether the node removes groups without members and offsets during the run."""
        self.groups_of_both: set[str] = set()
        """Groups with members of both protocols, whose owners and commits `ownership` checks: such a group starts its
        generations again, and a member of an older epoch may commit its former partitions (KIP-1251)."""
        self.acknowledged: dict[TopicPartition, dict[int, Content]] = {}
        self.seen: dict[TopicPartition, dict[int, Content]] = {}
        self.uncertain_tombstones: dict[TopicPartition, dict[bytes | None, int]] = {}
        """The offset of the newest tombstone of each key that a power cut may have removed, or not."""
        self.groups: dict[str, GroupHistory] = {}
        self.acknowledged_count = 0
        self.seen_count = 0
        self.losses = 0
        """Power cuts that ended promises."""
        self.disks_lie = False
        """Whether a reader may receive batches that do not match their checksum. It reads them again later."""

    def is_dense(self, topic: str) -> bool:
        """Whether no offset of the topic may be missing: no client deletes its records, and no power cut has lost
        any."""
        return self.rules[topic].dense and not self.losses

    # ---- records ---------------------------------------------------------------------------------------------------

    def acknowledge(self, who: str, where: TopicPartition, base_offset: int, notes: Sequence[Content]) -> None:
        """Record that the node has acknowledged these records, at `base_offset` and after."""
        acknowledged = self.acknowledged.setdefault(where, {})
        seen = self.seen.setdefault(where, {})
        tombstones = self.uncertain_tombstones.get(where, {})
        for key in [key for key, offset in tombstones.items() if offset >= base_offset]:
            del tombstones[key]  # the power cut has removed it
        for offset, content in enumerate(notes, base_offset):
            if seen.get(offset, content) != content or acknowledged.get(offset, content) != content:
                other = seen.get(offset) or acknowledged.get(offset)
                raise InvariantError(
                    f"{who}: {where} acknowledges {_shown(content)} at {offset}, where {_shown(other)} stands"
                )
            acknowledged[offset] = content
        self.acknowledged_count += len(notes)

    def see(self, who: str, where: TopicPartition, batch: ReadBatch) -> None:
        """Record that a reader received this batch."""
        acknowledged = self.acknowledged.setdefault(where, {})
        seen = self.seen.setdefault(where, {})
        for note in batch.notes:
            content = (note.key, note.value)
            before = seen.get(note.offset) or acknowledged.get(note.offset)
            if before is not None and before != content:
                raise InvariantError(
                    f"{who}: {where} shows {_shown(content)} at {note.offset}, where {_shown(before)} stood"
                )
            seen[note.offset] = content
        self.seen_count += len(batch.notes)

    def forget_beyond(self, ends: Mapping[TopicPartition, int]) -> None:
        """Handle a power cut after which only offsets below `ends` are fsynced."""
        self.losses += 1
        for table in (self.acknowledged, self.seen):
            for where, contents in table.items():
                end = ends.get(where, 0)
                tombstones = self.uncertain_tombstones.setdefault(where, {})
                for offset in [offset for offset in contents if offset >= end]:
                    key, value = contents.pop(offset)
                    if value is None:
                        tombstones[key] = max(offset, tombstones.get(key, -1))
        self.groups.clear()

    # ---- groups ----------------------------------------------------------------------------------------------------

    def _group(self, group: str) -> GroupHistory:
        return self.groups.setdefault(group, GroupHistory(-1, {}, {}))

    def own(self, group: str, generation: int, member: str, partitions: Iterable[TopicPartition]) -> None:
        """Record that a SyncGroup answer gave these partitions to `member`. Of groups of both protocols nothing is
        recorded, so `check_fenced` knows no newer generation of theirs either."""
        if group in self.groups_of_both:
            return
        state = self._group(group)
        mine = list(partitions)
        taken = any(state.owners.get((generation, where), member) != member for where in mine)
        if (taken or generation < state.generation) and self.groups_vanish and not _acknowledged_any(state):
            self.groups[group] = state = GroupHistory(-1, {}, {})  # the node removed it, and it starts again
        for where in mine:
            owner = state.owners.setdefault((generation, where), member)
            if owner != member:
                raise InvariantError(
                    f"{where} belongs to {owner} and to {member} in generation {generation} of {group}"
                )
        state.generation = max(state.generation, generation)

    def begin_commit(self, now_us: Micros, group: str, offsets: Mapping[TopicPartition, int]) -> tuple[Commit, ...]:
        """A commit is sent; give the result to `end_commit` partition by partition."""
        state = self._group(group)
        commits: list[Commit] = []
        for where, offset in offsets.items():
            commit = Commit(offset, now_us)
            state.commits.setdefault(where, []).append(commit)
            commits.append(commit)
        return tuple(commits)

    def newest_generation(self, group: str) -> int:
        return self._group(group).generation

    def end_commit(self, now_us: Micros, commit: Commit, *, accepted: bool) -> None:
        commit.ended_us = now_us
        commit.refused = not accepted

    def check_fenced(self, group: str, member: str, generation: int, newest_at_begin: int) -> None:
        """A commit was accepted: its generation must not have been superseded before it was sent."""
        if group in self.groups and generation < newest_at_begin:
            raise InvariantError(
                f"{member} commits in generation {generation} of {group} after {newest_at_begin} was stable"
            )

    def fetch_commit(self, begun_us: Micros, group: str, where: TopicPartition, offset: int) -> None:
        """An OffsetFetch sent at `begun_us` answered `offset` (-1: none)."""
        commits = self._group(group).commits.get(where, [])
        newest_us = -1
        for commit in commits:
            if commit.ended_us is not None and not commit.refused and commit.ended_us <= begun_us:
                newest_us = max(newest_us, commit.begun_us)
        if offset < 0 and newest_us < 0:
            return
        for commit in commits:
            if commit.offset == offset and not commit.refused:
                ended_us = commit.ended_us
                if ended_us is None or ended_us >= newest_us:
                    return
        if offset < 0:
            raise InvariantError(f"{group} has lost its committed offset of {where}")
        if newest_us >= 0 or not self.losses:
            raise InvariantError(f"{group} finds {offset} committed for {where}: never committed, or long superseded")

    def trim_commits(self, group: str, where: TopicPartition, before_us: Micros) -> None:
        """Drop commits that no fetch begun after `before_us` may answer with."""
        commits = self._group(group).commits.get(where)
        if commits is None or len(commits) < 64:
            return
        ended = [c for c in commits if c.ended_us is not None and not c.refused]
        begun = [c.begun_us for c in ended if c.ended_us is not None and c.ended_us <= before_us]
        if begun:
            newest_us = max(begun)
            commits[:] = [c for c in commits if c.ended_us is None or (not c.refused and c.ended_us >= newest_us)]


def _acknowledged_any(group: GroupHistory) -> bool:
    return any(c.ended_us is not None and not c.refused for commits in group.commits.values() for c in commits)


def _shown(content: Content | None) -> str:
    if content is None:
        return "nothing"
    key, value = content
    return f"{key!r}={value[:40] if value is not None else None!r}"
