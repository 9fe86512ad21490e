"""Asks all leaders of a share group's partitions which of its records are in flight: DescribeSharePartitions.

This is one of Ottla's own requests. Where a node does not serve it, as on Kafka, the result has what the group's
coordinator knows: start offset and lag (key 90), and the group's members (key 77).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, Protocol

from ottla.client.client import Client, TopicPartition
from ottla.client.errors import ClientError, UnsupportedVersionError, check
from ottla.client.private_requests import ask_nodes
from ottla.client.share_groups import ShareOffset, describe_share_group, share_group_offsets
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_share_partitions import (
    DescribeSharePartitionsRequest,
    RequestPartition,
    RequestTopic,
    ResponsePartition,
    Run,
)

RUNS_MAX: Final = 1000
_ACQUIRED, _ARCHIVING = 1, 3
_MOVED: Final = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
_PAUSES_S: Final = (0.1, 0.5, 1.0)
"""Waits before the next attempts, while partitions have no leader."""


class RunState(StrEnum):
    """The event that a run of records waits for."""

    ACQUIRED = "acquired"
    BACKING_OFF = "backing off"
    DELAYED = "delayed"
    AVAILABLE = "available"
    ARCHIVING = "archiving"


@dataclass(frozen=True, slots=True)
class InFlight:
    """A run of records. `held_ms` and `lock_left_ms` are those of acquired records, `next_try_ms` of others that
    members may get. `is_being_written`: its acknowledgement is being stored. `is_rejected`: its dead letter is due to a
    rejection. `reason`: the last one that a member gave, for the delivery with the number `reason_delivery`."""

    first_offset: int
    last_offset: int
    state: RunState
    delivery_count: int
    member: str | None = None
    client_id: str | None = None
    host: str | None = None
    held_ms: int | None = None
    lock_left_ms: int | None = None
    next_try_ms: int | None = None
    is_being_written: bool = False
    is_rejected: bool = False
    reason: str | None = None
    reason_delivery: int | None = None


@dataclass(frozen=True, slots=True)
class FrequentReason:
    """A reason that members gave for the latest failures: for how many, and when last."""

    text: str
    failures: int
    last_ms: int


@dataclass(frozen=True, slots=True)
class SharePartition:
    """How far a group is in one partition. `start_offset` and `lag` are -1 if the group has not read it yet.

    `why_unknown`: why the leader's part is missing. `reasons`: the most common ones of the latest failures, if the
    user may read the topic. `is_loaded`: whether a member has fetched from this leader; if not,
    no record is acquired. Counters begin when it was loaded. `has_more`: there may be runs behind `runs`.
    `leader_epoch` is -1 if the leader did not answer.
    """

    topic: str
    partition: int
    start_offset: int
    lag: int
    why_unknown: str | None = None
    is_loaded: bool = False
    end_offset: int = -1
    readable_end: int = -1
    acquired: int = 0
    archiving: int = 0
    completed: int = 0
    acknowledged: dict[str, int] = field(default_factory=dict[str, int])
    lock_timeouts: int = 0
    dead_letters: int = 0
    runs: tuple[InFlight, ...] = ()
    has_more: bool = False
    reasons: tuple[FrequentReason, ...] = ()
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class ShareGroup:
    """A share group at one moment. `limits`: acquired records of a partition, deliveries of a record, milliseconds of a
    lock. They are None, and a pause is unknown, if no node has reported them."""

    name: str
    state: str
    members: int
    partitions: tuple[SharePartition, ...]
    is_paused: bool | None = None
    paused_since_ms: int | None = None
    paused_by: str | None = None
    limits: dict[str, int] | None = None
    unserved_by: tuple[int, ...] = ()
    """Nodes that do not serve the request."""


@dataclass(frozen=True, slots=True)
class Coordinated:
    """The report of a share group's coordinator: the group's state, number of members, and positions."""

    state: str
    members: int
    offsets: Sequence[ShareOffset]


def coordinated(client: Client, group: str) -> Coordinated:
    """The report of the coordinator. Raises ClientError."""
    described = describe_share_group(client, group)
    return Coordinated(described.group_state, len(described.members), share_group_offsets(client, group))


def describe_share_partitions(
    client: Client,
    group: str,
    *,
    runs_max: int = RUNS_MAX,
    known: Coordinated | None = None,
    with_reasons: bool = True,
) -> ShareGroup:
    """The group with all its partitions, and at most `runs_max` runs of each. `known`: what the coordinator has just
    reported, if that is known. `with_reasons`: whether to ask for the reasons that members gave.

    Raises ClientError if the group does not exist or its coordinator does not answer. `SharePartition.why_unknown` says
    which leader does not."""
    known = coordinated(client, group) if known is None else known
    asking = _Asking(client, group, runs_max, with_reasons)
    asking.ask((each.topic, each.partition) for each in known.offsets)
    found = ShareGroup(
        group,
        known.state,
        known.members,
        tuple(asking.partition(each.topic, each.partition, each.start_offset, each.lag) for each in known.offsets),
        unserved_by=tuple(sorted(asking.unserved_by)),
    )
    answer = asking.last
    if answer is None:
        return found
    return replace(
        found,
        is_paused=answer.paused,
        paused_since_ms=answer.paused_since_ms if answer.paused_since_ms >= 0 else None,
        paused_by=answer.paused_by,
        limits={
            "record_locks": answer.record_locks_max,
            "deliveries": answer.delivery_count_limit,
            "lock_ms": answer.lock_duration_ms,
        },
    )


class _Asking:
    """The answers of leaders so far."""

    def __init__(self, client: Client, group: str, runs_max: int, with_reasons: bool) -> None:
        self._client = client
        self._group = group
        self._with_reasons = with_reasons
        self._runs_max = runs_max
        self._found: dict[TopicPartition, ResponsePartition] = {}
        self._runs: dict[TopicPartition, list[Run]] = {}
        self._why: dict[TopicPartition, str] = {}
        self.unserved_by: set[int] = set()
        self.last: Any = None

    def ask(self, places: Iterable[TopicPartition]) -> None:
        """Ask the leaders, again for those that moved, and for the next pages of long answers."""
        left = dict.fromkeys(places, -1)
        pauses = list(_PAUSES_S)
        self._client.forget_topics()
        while left:
            moved, more = self._ask_once(left)
            if moved and not pauses:
                self._why.update(moved)
                moved = {}
            if moved:
                time.sleep(pauses.pop(0))
                self._client.forget_topics()
            left = {**dict.fromkeys(moved, -1), **more}

    def _ask_once(
        self, wanted: dict[TopicPartition, int]
    ) -> tuple[dict[TopicPartition, str], dict[TopicPartition, int]]:
        """The partitions whose leader is another one by now, with the reason; and those with more runs, with the next
        offset."""
        moved: dict[TopicPartition, str] = {}
        more: dict[TopicPartition, int] = {}
        by_leader: dict[int, list[TopicPartition]] = {}
        for place in wanted:
            try:
                leader = self._client.known_topic(place[0]).leaders[place[1]]
            except (ClientError, IndexError) as error:
                self._why[place] = str(error)
                continue
            if leader < 0:
                moved[place] = "it has no leader"
            else:
                by_leader.setdefault(leader, []).append(place)
        requests = {
            node_id: partitions_request(
                self._group, {place: wanted[place] for place in places}, self._runs_max, with_reasons=self._with_reasons
            )
            for node_id, places in by_leader.items()
        }
        for node_id, answer in ask_nodes(self._client, requests).items():
            error = self._error_of(node_id, answer)
            if error is not None:
                self._why.update(dict.fromkeys(by_leader[node_id], error))
                continue
            self.last = answer
            answered = {(each.name, part.partition_index): part for each in answer.topics for part in each.partitions}
            for place in by_leader[node_id]:
                part = answered.get(place)
                if part is None:
                    self._why[place] = "you may not describe its topic"
                elif part.error_code in _MOVED:
                    moved[place] = ErrorCode(part.error_code).message.rstrip(".")
                    self._runs.pop(place, None)
                elif part.error_code:
                    self._why[place] = ErrorCode(part.error_code).message.rstrip(".")
                else:
                    runs = self._runs.setdefault(place, [])
                    runs += part.runs[: self._runs_max - len(runs)]
                    self._found[place] = part
                    if part.next_offset >= 0 and len(runs) < self._runs_max:
                        more[place] = part.next_offset
        return moved, more

    def _error_of(self, node_id: int, answer: Any) -> str | None:
        """Why there is nothing in a node's answer."""
        if isinstance(answer, UnsupportedVersionError):
            self.unserved_by.add(node_id)
        if not isinstance(answer, ClientError) and answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            check(answer.error_code, f"share group {self._group}")
        if isinstance(answer, ClientError):
            return str(answer).rstrip(".")
        return f"node {node_id}: {answer.error_message}" if answer.error_code else None

    def partition(self, topic: str, index: int, start_offset: int, lag: int) -> SharePartition:
        """A partition, of which the coordinator has reported this much."""
        part = self._found.get((topic, index))
        if part is None:
            why = self._why.get((topic, index), "its leader did not answer")
            return SharePartition(topic, index, start_offset, lag, why)
        if not part.is_loaded:
            return SharePartition(topic, index, start_offset, lag, leader_epoch=part.leader_epoch)
        return loaded_partition(topic, index, part, self._runs[topic, index])


def loaded_partition(
    topic: str, index: int, part: ResponsePartition, runs: Iterable[Run] | None = None
) -> SharePartition:
    """A partition as its leader reports it, which has loaded it. `runs`: those of several answers together."""
    acknowledged = {
        "accept": part.accepted_count,
        "release": part.released_count,
        "reject": part.rejected_count,
        "renew": part.renewed_count,
        "gap": part.gap_count,
    }
    return SharePartition(
        topic,
        index,
        part.start_offset,
        part.lag,
        None,
        True,
        part.end_offset,
        part.readable_end_offset,
        part.acquired_count,
        part.archiving_count,
        part.completed_count,
        acknowledged,
        part.lock_timeout_count,
        part.dead_letter_count,
        tuple(_run(each) for each in (part.runs if runs is None else runs)),
        part.next_offset >= 0,
        tuple(FrequentReason(each.text, each.failure_count, each.last_ms) for each in part.reasons),
        part.leader_epoch,
    )


class HasReasons(Protocol):
    """A partition of a share group."""

    @property
    def reasons(self) -> tuple[FrequentReason, ...]: ...


def frequent_reasons(partitions: Iterable[HasReasons]) -> tuple[FrequentReason, ...]:
    """The reasons of all these partitions together, the most common first."""
    found: dict[str, FrequentReason] = {}
    for part in partitions:
        for each in part.reasons:
            known = found.get(each.text, FrequentReason(each.text, 0, 0))
            last_ms = max(known.last_ms, each.last_ms)
            found[each.text] = FrequentReason(each.text, known.failures + each.failures, last_ms)
    return tuple(sorted(found.values(), key=lambda each: (-each.failures, -each.last_ms, each.text)))


def partitions_request(
    group: str, wanted: dict[TopicPartition, int], runs_max: int, *, with_reasons: bool = True
) -> DescribeSharePartitionsRequest:
    """Asks a leader for partitions, each from an offset on, -1 for all."""
    return DescribeSharePartitionsRequest(group, _topics(wanted), min(runs_max, RUNS_MAX), with_reasons)


def _topics(wanted: dict[TopicPartition, int]) -> list[RequestTopic]:
    by_name: dict[str, list[RequestPartition]] = {}
    for (name, index), offset in wanted.items():
        by_name.setdefault(name, []).append(RequestPartition(index, offset))
    return [RequestTopic(name, partitions) for name, partitions in by_name.items()]


def _run(run: Run) -> InFlight:
    if run.state == _ACQUIRED:
        state = RunState.ACQUIRED
    elif run.state == _ARCHIVING:
        state = RunState.ARCHIVING
    elif not run.next_try_ms:
        state = RunState.AVAILABLE
    else:
        state = RunState.BACKING_OFF if run.delivery_count else RunState.DELAYED
    times = (each if each >= 0 else None for each in (run.held_ms, run.lock_left_ms, run.next_try_ms))
    return InFlight(
        run.first_offset,
        run.last_offset,
        state,
        run.delivery_count,
        run.member_id,
        run.client_id,
        run.client_host,
        *times,
        is_being_written=run.is_being_written,
        is_rejected=run.is_rejected,
        reason=run.reason,
        reason_delivery=run.reason_delivery_count if run.reason is not None else None,
    )
