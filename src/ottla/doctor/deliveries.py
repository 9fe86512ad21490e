"""Reads what the leaders of share groups' partitions report of records in flight into a snapshot.

Only Ottla's nodes report it. A group without members or without waiting records has nothing in flight that matters, so
the doctor asks for the others alone, and for at most `GROUPS_MAX` of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from ottla.client.errors import ClientError, UnsupportedVersionError
from ottla.client.read_together import Question
from ottla.client.share_partitions import InFlight, RunState, SharePartition, loaded_partition, partitions_request
from ottla.doctor.asking import Answers
from ottla.doctor.snapshot import SHARE, Deliveries, Group, Holder, TopicPartition
from ottla.doctor.words import count
from ottla.protocol.errors import ErrorCode

GROUPS_MAX: Final = 20
RUNS_MAX: Final = 100
"""Runs of a partition: enough to see its holders. With more runs, some figures are missing."""
WAITING: Final = (RunState.BACKING_OFF, RunState.DELAYED)
UNSERVED: Final = "records in flight of share groups, which only Ottla reports: the doctor cannot know who holds them"


class Flights:
    """The search for records in flight of share groups.

    `leaders`: the leader of each partition. `with_reasons`: whether to ask for the reasons that members gave.
    """

    def __init__(
        self,
        groups: Iterable[Group],
        leaders: Mapping[TopicPartition, int],
        unseen: dict[str, None],
        *,
        with_reasons: bool,
    ) -> None:
        self._with_reasons = with_reasons
        self._groups = list(groups)
        self._leaders = leaders
        self._unseen = unseen
        wanted = [
            each
            for each in self._groups
            if each.type == SHARE and each.members and any(place.lag for place in each.committed.values())
        ]
        self._asked = wanted[:GROUPS_MAX]
        if left_out := len(wanted) - len(self._asked):
            unseen[f"records in flight of {count(left_out, 'share group')} beyond the first {GROUPS_MAX}"] = None

    def questions(self, node_id: int) -> dict[Hashable, Question]:
        """The questions to a node: one for each group that reads partitions which the node leads."""
        found: dict[Hashable, Question] = {}
        for group in self._asked:
            led = [place for place in sorted(group.committed) if self._leaders.get(place) == node_id]
            if led:
                found[group.name] = partitions_request(
                    group.name, dict.fromkeys(led, -1), RUNS_MAX, with_reasons=self._with_reasons
                )
        return found

    def found(self, answers: Answers) -> list[Group]:
        """The groups, with their deliveries. Adds what is missing to `unseen`."""
        deliveries = {each.name: self._deliveries(each, answers) for each in self._asked}
        return [
            replace(each, deliveries=deliveries[each.name]) if each.name in deliveries else each
            for each in self._groups
        ]

    def _deliveries(self, group: Group, answers: Answers) -> dict[TopicPartition, Deliveries]:
        """The deliveries of each partition that its leader has loaded."""
        found: dict[TopicPartition, Deliveries] = {}
        for answer in (each[group.name] for each in answers.values() if group.name in each):
            why = _why_unknown(answer)
            if isinstance(answer, UnsupportedVersionError):
                self._unseen[UNSERVED] = None
            elif why is not None:
                self._unseen[f"records in flight of {group.name}: {why}"] = None
            else:
                for topic in answer.topics:
                    for part in topic.partitions:
                        if part.error_code:
                            why = ErrorCode(part.error_code).message.rstrip(".")
                            self._unseen[f"records in flight of {group.name}: {why}"] = None
                        elif part.is_loaded:
                            place = topic.name, part.partition_index
                            found[place] = _of(loaded_partition(*place, part), answer.record_locks_max)
        return found


def _why_unknown(answer: Any) -> str | None:
    """Why a leader's answer has no records."""
    if isinstance(answer, ClientError):
        return str(answer).rstrip(".")
    return answer.error_message or ErrorCode(answer.error_code).name if answer.error_code else None


def _of(part: SharePartition, limit: int | None) -> Deliveries:
    waiting = [each for each in part.runs if each.state in WAITING]
    return Deliveries(
        part.start_offset,
        max(0, part.readable_end - part.start_offset - part.completed),
        part.acquired,
        part.archiving,
        sum(map(_size, waiting)),
        min((each.next_try_ms for each in waiting if each.next_try_ms is not None), default=None),
        limit,
        _holders(part.runs),
        part.reasons,
    )


def _size(run: InFlight) -> int:
    return run.last_offset - run.first_offset + 1


def _holders(runs: Iterable[InFlight]) -> tuple[Holder, ...]:
    """The members with records, those with the most records first."""
    found: dict[str, Holder] = {}
    for run in runs:
        if run.state is not RunState.ACQUIRED or run.member is None:
            continue
        known = found.get(run.member) or Holder(run.client_id or run.member, run.host or "")
        found[run.member] = replace(
            known,
            records=known.records + _size(run),
            held_ms=max(known.held_ms, run.held_ms or 0),
            lock_left_ms=max(known.lock_left_ms, run.lock_left_ms or 0),
        )
    return tuple(sorted(found.values(), key=lambda each: -each.records))
