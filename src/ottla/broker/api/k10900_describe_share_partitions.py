"""DescribeSharePartitions, key 10900, versions 0 to 1: records of a share group that are acquired or delayed.

One of Ottla's own requests (docs/private-requests.md). The leader of a partition answers, because only it has the locks
of members. The answer has each run of records with its state, its deliveries, its member, and the time until its lock
or its delay ends; the figures of the partition since it was loaded; and whether the group is paused. Without topics, it
has all share partitions of the group that are loaded here.

A share partition is loaded by the first fetch of a member. One that is not loaded has no acquired record, and the share
coordinator knows the rest (key 90). A topic that the client may not describe is left out. A node that coordinates the
group, or that no group can exist on, answers GROUP_ID_NOT_FOUND for an unknown group. Another node can't know that.

Versions: 1 the reasons that members gave (ExplainShareRecords), if the request wants them. Reasons may quote records,
so only a client that may read the topic gets them. Records with different reasons are in different runs, in every
version.

Bounds: `RUNS_MAX` runs of a partition, `ANSWER_RUNS_MAX` of an answer. If there may be more, `next_offset` is where to
continue. Long answers are built in slices, so the runs are not of one moment; the times are as of the request.

Not supported: nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ottla.broker.api.share_offsets import question
from ottla.broker.api_spec import ApiSpec
from ottla.broker.config.share_groups import PAUSED_BY, PAUSED_SINCE, GroupConfigs
from ottla.broker.coordinators.rounds import Round, Work, ask_in_rounds
from ottla.broker.delivery.describing import RUNS_MAX, frequent_reasons, in_flight
from ottla.broker.delivery.host import ShareHost
from ottla.broker.delivery.partitions import HostedShare
from ottla.broker.delivery.sessions import CLIENT_ID_CHARS_MAX
from ottla.broker.requests import Request
from ottla.broker.slices import SLICE_STEPS, EncodedStructs
from ottla.groups.share.admin import AskShares, ShareAnswer
from ottla.machine import Millis
from ottla.metadata.features import SHARE_VERSION
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.coordinator_records import CONSUMER_OFFSETS_TOPIC
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_share_partitions import (
    DescribeSharePartitionsRequest,
    DescribeSharePartitionsResponse,
    Reason,
    ResponsePartition,
    ResponseTopic,
    Run,
)
from ottla.share.standing import InFlight, State

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.DESCRIBE_SHARE_PARTITIONS,
    versions=(0, 1),
    acl=(
        (Operation.DESCRIBE, ResourceType.GROUP),
        (Operation.DESCRIBE, ResourceType.TOPIC),
        (Operation.READ, ResourceType.TOPIC),
    ),
    needs_lease=True,
)


ANSWER_RUNS_MAX: Final = 10_000
"""Maximum number of runs in one answer: some 2 MB at most."""


def handle(node: Core, request: Request) -> Any:
    return ask_in_rounds(node.slices, request, _describe(node, request))


def _describe(node: Core, request: Request) -> Work:
    body: DescribeSharePartitionsRequest = request.body
    if not node.access.on_group(request, Operation.DESCRIBE, body.group_id):
        return _refused(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if not node.image.level_of(SHARE_VERSION):
        return _refused(ErrorCode.UNSUPPORTED_VERSION)
    share = node.coordinators.in_use.share
    if share is None or not share.hosted_of(body.group_id):
        error = yield from _why_no_group(node, body.group_id)
        if error:
            return _refused(error)
    return (yield from _Answer(node, request, share).build())


def _why_no_group(node: Core, group_id: str) -> Work:
    """GROUP_ID_NOT_FOUND if it is certain that there is no such share group, otherwise NONE."""
    if CONSUMER_OFFSETS_TOPIC not in node.image.topics:
        return ErrorCode.GROUP_ID_NOT_FOUND
    answers: list[ShareAnswer] = yield Round(node.coordinators.groups, [question(node, AskShares(group_id))])
    unknown = answers[0].error is ErrorCode.GROUP_ID_NOT_FOUND
    return ErrorCode.GROUP_ID_NOT_FOUND if unknown else ErrorCode.NONE


def _refused(error: ErrorCode) -> DescribeSharePartitionsResponse:
    return DescribeSharePartitionsResponse(error_code=error, error_message=error.message)


@dataclass(slots=True)
class _Wanted:
    """A topic of the answer, and the partitions that are asked for: index, and the first offset of their runs."""

    name: str
    topic_id: bytes
    partitions: Iterable[tuple[int, int]]


class _Answer:
    """The answer in the making."""

    def __init__(self, node: Core, request: Request, share: ShareHost | None) -> None:
        self._node = node
        self._request = request
        self._body: DescribeSharePartitionsRequest = request.body
        self._share = share
        self._runs_max = min(max(self._body.runs_max, 0), RUNS_MAX)
        self._runs_left = ANSWER_RUNS_MAX
        self._shows_reasons = False
        """Whether the reasons of the present topic are part of the answer."""

    def build(self) -> Work:
        node, group_id, version = self._node, self._body.group_id, self._request.version
        topics: Any = EncodedStructs(version)
        steps = 0
        for wanted in self._named() if self._body.topics is not None else self._loaded():
            self._shows_reasons = self._body.with_reasons and node.access.quiet.on_topic(
                self._request, Operation.READ, wanted.name
            )
            partitions: Any = EncodedStructs(version)
            for index, offset in wanted.partitions:
                part, hosted = self._partition(wanted, index)
                steps += 1
                if hosted is not None:
                    steps = yield from self._add_runs(part, hosted, offset, steps)
                partitions.add((part,))
                if steps >= SLICE_STEPS:
                    steps = 0
                    yield
            topics.add((ResponseTopic(wanted.name, wanted.topic_id, partitions),))
        configs = node.settings.of_group(group_id)
        config = GroupConfigs(node.settings, node.settings.of_group).of(group_id)  # `ShareHost.configs` would keep it
        return DescribeSharePartitionsResponse(
            paused=config.paused,
            paused_since_ms=int(configs.get(PAUSED_SINCE) or -1) if config.paused else -1,
            paused_by=configs.get(PAUSED_BY) if config.paused else None,
            record_locks_max=config.settings.record_locks_max,
            delivery_count_limit=config.settings.delivery_count_limit,
            lock_duration_ms=config.settings.lock_duration_ms,
            topics=topics,
        )

    def _named(self) -> Iterator[_Wanted]:
        """The topics that the request names, and that the client may describe."""
        for asked in self._body.topics or ():
            if self._node.access.on_topic(self._request, Operation.DESCRIBE, asked.name):
                topic = self._node.image.topics.get(asked.name)
                wanted = ((each.partition_index, each.from_offset) for each in asked.partitions)
                yield _Wanted(asked.name, bytes(16) if topic is None else topic.id, wanted)

    def _loaded(self) -> Iterator[_Wanted]:
        """The topics of which this node delivers records to the group, and that the client may describe."""
        found: dict[bytes, list[tuple[int, int]]] = {}
        for hosted in () if self._share is None else self._share.hosted_of(self._body.group_id):
            if hosted.machine is not None:
                found.setdefault(hosted.key.topic_id, []).append((hosted.key.partition, -1))
        access = self._node.access.quiet
        for topic_id, wanted in found.items():
            topic = self._node.image.topics_by_id.get(topic_id)
            if topic is not None and access.on_topic(self._request, Operation.DESCRIBE, topic.name):
                yield _Wanted(topic.name, topic_id, wanted)

    def _partition(self, wanted: _Wanted, index: int) -> tuple[ResponsePartition, HostedShare | None]:
        """The figures of a partition, without its runs; and the share partition, if it is loaded."""
        node, share = self._node, self._share
        led = node.leadership.led(wanted.name, index)
        if isinstance(led, ErrorCode):
            return ResponsePartition(index, led, led.message), None
        hosted = None if share is None else share.known(self._body.group_id, (wanted.topic_id, index))
        figures = None if share is None or hosted is None else share.describe_one(hosted)
        if figures is None or hosted is None:
            return ResponsePartition(index, leader_epoch=led.leader_epoch), None
        acknowledged = figures.acknowledged
        wall = node.environment.wall
        common = frequent_reasons(hosted.machine) if self._shows_reasons and hosted.machine is not None else []
        return ResponsePartition(
            index,
            is_loaded=True,
            leader_epoch=figures.leader_epoch,
            start_offset=figures.start_offset,
            end_offset=figures.end_offset,
            readable_end_offset=figures.readable_end,
            lag=figures.lag,
            acquired_count=figures.in_flight,
            archiving_count=figures.archiving,
            completed_count=figures.complete_count,
            accepted_count=acknowledged["accept"],
            released_count=acknowledged["release"],
            rejected_count=acknowledged["reject"],
            renewed_count=acknowledged["renew"],
            gap_count=acknowledged["gap"],
            lock_timeout_count=figures.lock_timeouts,
            dead_letter_count=figures.dead_letters,
            reasons=[Reason(each.text, each.failures, wall.at(each.last)) for each in common],
        ), hosted

    def _add_runs(self, part: ResponsePartition, hosted: HostedShare, offset: int, steps: int) -> Work:
        """Add the runs in flight to the partition; returns the number of steps since the last slice."""
        runs: Any = EncodedStructs(self._request.version)
        runs_max = min(self._runs_max, self._runs_left)
        pages = in_flight(hosted, max(offset, part.start_offset), runs_max)
        more = True
        while more:
            try:
                page = next(pages)
                steps = SLICE_STEPS
            except StopIteration as end:
                page, next_offset = end.value
                part.next_offset = -1 if next_offset is None else next_offset
                steps += len(page)
                more = False
            runs.add(self._run(hosted, each) for each in page)
            self._runs_left -= len(page)
            if steps >= SLICE_STEPS:
                steps = 0
                yield
        part.runs = runs
        return steps

    def _run(self, hosted: HostedShare, run: InFlight) -> Run:
        now: Millis = self._request.now
        found = Run(
            run.first, run.last, run.state, run.delivery_count, run.is_being_written, run.is_rejected, None, None, None
        )
        if run.state is State.ACQUIRED:
            assert self._share is not None
            session = self._share.sessions.get(hosted.key.group_id, run.member)
            found.member_id = run.member
            if session is not None:
                found.client_id = session.client.client_id[:CLIENT_ID_CHARS_MAX]
                found.client_host = session.client.host
            found.held_ms = max(now - run.since, 0)
            found.lock_left_ms = max(run.until - now, 0)
        elif run.state is State.AVAILABLE:
            found.next_try_ms = max(run.until - now, 0)
        if run.reason is not None and self._shows_reasons:
            found.reason, found.reason_delivery_count = run.reason
        return found
