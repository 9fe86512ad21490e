"""Carries out ShareFetch and ShareAcknowledge: acknowledge first, then fetch, then wait for records.

It applies the rules of sessions, validates acknowledgements, and decides when an answer is complete. The handlers (k78,
k79) decode and encode.

    begin -> acknowledge every partition named -> all persisted? -> fetch -> records found? -> answer
                 | of many, in slices                 | else parked             | else parked until woken or max_wait

Invariants: a request is answered once. While an acknowledgement of it is being persisted, or not even submitted, it is
not answered. A parked fetch is among the waiters of each of its share partitions.

Sources: KIP-932; Kafka's KafkaApis.handleShareFetchRequest, SharePartitionManager.java, DelayedShareFetch.java.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from ottla.broker.cluster.members import Member
from ottla.broker.delivery.answer import ShareAnswer
from ottla.broker.delivery.host import ShareHost
from ottla.broker.delivery.partitions import HostedShare, ShareWaiter
from ottla.broker.delivery.reading import Budget, ShareReader, readable_end
from ottla.broker.delivery.sessions import FINAL_EPOCH, INITIAL_EPOCH, ClientName, ShareSession, TopicIdPartition
from ottla.broker.effects import Parked, Part
from ottla.broker.requests import Request
from ottla.broker.security.authorizer import Access, Operation
from ottla.machine import Millis, Ticket
from ottla.metadata.features import SHARE_VERSION
from ottla.protocol.errors import ErrorCode
from ottla.share.standing import Acknowledge, AcknowledgeBatch

MEMBER_ID_LENGTH_MAX: Final = 36
ACKNOWLEDGED_AT_ONCE: Final = 2_000
"""Runs of records that are changed in one slice: each needs some 10 µs."""
BATCH_OPTIMIZED: Final = 0
RECORD_LIMIT: Final = 1
"""share_acquire_mode: whole batches until there are enough records, or exactly so many at most (KIP-1206)."""

_LED_ELSEWHERE: Final = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
_WHY_NOT: Final = {
    ErrorCode.INVALID_RECORD_STATE: "A record is not acquired, or not by this member.",
    ErrorCode.INVALID_REQUEST: "The batch ends past the records that were acquired, or renewing is not enabled.",
}


class ShareExchange(ShareWaiter):
    """The common part of both requests: a member, its session, and acknowledgements that must be persisted."""

    __slots__ = (
        "_at",
        "_persisting",
        "_said",
        "access",
        "answers",
        "by_place",
        "group_id",
        "member_id",
        "request",
        "session",
        "share",
    )

    def __init__(self, share: ShareHost, access: Access, request: Request) -> None:
        body = request.body
        self.share = share
        self.access = access
        self.request = request
        self.group_id: str = body.group_id or ""
        self.member_id: str = body.member_id or ""
        self.session: ShareSession | None = None
        self.answers: list[ShareAnswer] = []
        self.by_place: dict[TopicIdPartition, ShareAnswer] = {}
        self._at: dict[TopicIdPartition, int] = {}
        """The index in `answers` of the answer to an acknowledgement."""
        self.ticket: Ticket | None = None
        self._said: deque[tuple[ShareAnswer, Sequence[AcknowledgeBatch], bool]] = deque()
        """Acknowledgements that were not handed over yet, and whether they are the rest of a partition's."""
        self._persisting = 0
        """How many submitted acknowledgements are not persisted yet."""

    def answer_for(self, place: TopicIdPartition) -> ShareAnswer:
        answer = self.by_place.get(place)
        if answer is None:
            answer = self.by_place[place] = ShareAnswer(place)
            self._at[place] = len(self.answers)
            self.answers.append(answer)
        return answer

    # ---- permissions -----------------------------------------------------------------------------------------------

    def refusal(self) -> ErrorCode | None:
        """Why this group or this member gets no answer but an error."""
        if not self.share.metadata.image.level_of(SHARE_VERSION):
            return ErrorCode.UNSUPPORTED_VERSION
        if not self.access.on_group(self.request, Operation.READ, self.group_id):
            return ErrorCode.GROUP_AUTHORIZATION_FAILED
        if not self.group_id or not 0 < len(self.member_id) <= MEMBER_ID_LENGTH_MAX:
            return ErrorCode.INVALID_REQUEST
        return None

    def may_read(self, place: TopicIdPartition) -> ErrorCode:
        topic = self.share.metadata.image.topics_by_id.get(place[0])
        if topic is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        if self.access.authorizer is not None and not self.access.on_topic(self.request, Operation.READ, topic.name):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        partition = self.share.leadership.led(*place)
        return partition if isinstance(partition, ErrorCode) else ErrorCode.NONE

    # ---- acknowledging ---------------------------------------------------------------------------------------------

    def acknowledge_all(self, now: Millis) -> None:
        """Submit the request's acknowledgements, partition by partition; a large rest follows in later slices."""
        renews = self.request.body.is_renew_ack
        for topic in self.request.body.topics:
            topic_id = bytes(topic.topic_id)
            for part in topic.partitions:
                if part.acknowledgement_batches:
                    answer = self.answer_for((topic_id, part.partition_index))
                    batches = _valid_batches(part.acknowledgement_batches, renews)
                    answer.acknowledge_error = ErrorCode.INVALID_REQUEST if batches is None else ErrorCode.NONE
                    if batches is not None:
                        self._said.append((answer, batches, False))
        self._acknowledge_some(now)

    def acknowledge_more(self, now: Millis) -> None:
        """The next slice of that."""
        self._acknowledge_some(now)
        self._go_on_if_persisted(now)

    def _acknowledge_some(self, now: Millis) -> None:
        left = ACKNOWLEDGED_AT_ONCE
        while self._said and left > 0:
            answer, batches, is_rest = self._said.popleft()
            if not answer.acknowledge_error:  # no earlier part was refused
                answer.acknowledge_error = self.may_read(answer.place)
            if not answer.acknowledge_error:
                left -= 1 + self._acknowledge(now, answer, batches, is_rest, left)
        if self._said:
            self.share.acknowledge_later(self)

    def _acknowledge(
        self,
        now: Millis,
        answer: ShareAnswer,
        batches: Sequence[AcknowledgeBatch],
        is_rest: bool,
        runs_max: int,
    ) -> int:
        """Submit up to this many changes of one partition, whose rest comes next. Returns roughly how many they are."""
        hosted = self.share.known(self.group_id, answer.place)
        if hosted is None or hosted.machine is None:
            # No member has fetched from it since its leadership came here, so no member can hold locks.
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if hosted is None else ErrorCode.INVALID_RECORD_STATE
            answer.acknowledge_error = error
            return 0
        error, write, rest = hosted.machine.acknowledge(now, self.member_id, batches, runs_max, is_rest=is_rest)
        answer.acknowledge_error = error
        answer.acknowledge_message = _WHY_NOT.get(error)
        if write is not None:
            self._persisting += 1
            hosted.awaited[write.number] = (self, self._at[answer.place])
        self.share.settle(now, hosted)
        if rest:
            self._said.appendleft((answer, rest, True))
            return runs_max
        return sum(len(types) for _, _, types in batches)

    def acknowledged(self, now: Millis, at: int, error: ErrorCode) -> None:
        answer = self.answers[at]
        answer.acknowledge_error = answer.acknowledge_error or error
        self._persisting -= 1
        self._go_on_if_persisted(now)

    def _go_on_if_persisted(self, now: Millis) -> None:
        if self.ticket is not None and not self.is_persisting:
            self.persisted(now)

    def persisted(self, now: Millis) -> None:
        """Every acknowledgement is persisted, or refused; the request is parked."""
        raise NotImplementedError

    @property
    def is_persisting(self) -> bool:
        """Whether the answer has to wait for the request's acknowledgements."""
        return self._persisting > 0 or bool(self._said)

    def park(self, deadline: Millis | None) -> Parked:
        self.ticket = self.share.parking.park(self.request, deadline, self)
        return Parked(self.ticket)

    def leave_session(self, now: Millis) -> None:
        """The member leaves: close its session, unless the loss of its connection has closed it already."""
        if self.session is not None and self.share.sessions.get(self.group_id, self.member_id) is self.session:
            self.share.close_session(now, self.session)

    @property
    def lock_timeout_ms(self) -> int:
        """How long the group's locks last."""
        return self.share.configs.of(self.group_id).settings.lock_duration_ms

    def leader_hints(self) -> list[Member]:
        """The nodes for clients that asked the wrong one (KIP-951)."""
        leaders: list[int] = []
        for answer in self.answers:
            if answer.error in _LED_ELSEWHERE or answer.acknowledge_error in _LED_ELSEWHERE:
                leader = self.share.leadership.leader_of(*answer.place)
                if leader is not None:
                    answer.current_leader = leader
                    leaders.append(leader[0])
        return self.share.leadership.members.of(self.request.identity.address, leaders)


class ShareAcknowledging(ShareExchange):
    """A ShareAcknowledge."""

    __slots__ = ()

    def persisted(self, now: Millis) -> None:
        assert self.ticket is not None
        self.share.parking.answer(now, self.ticket, self.message(now))

    def message(self, now: Millis) -> Any:
        """The response; the session of a leaving member ends here."""
        raise NotImplementedError

    def serve(self, now: Millis, ticket: Ticket) -> None:
        raise AssertionError("an acknowledgement waits for no records")

    def abandon(self, ticket: Ticket) -> None:
        self.ticket = None  # its acknowledgements remain valid


class ShareFetching(ShareExchange):
    """A ShareFetch."""

    __slots__ = ("_budget", "_deadline", "_fetches", "_hosted", "_loads", "_new")

    def __init__(self, share: ShareHost, access: Access, request: Request) -> None:
        super().__init__(share, access, request)
        body = request.body
        self._deadline = request.now + max(body.max_wait_ms, 0)
        exactly = body.share_acquire_mode == RECORD_LIMIT
        self._budget = Budget(body.max_bytes, body.max_records, max(body.batch_size, 1), exactly)
        self._fetches = body.share_session_epoch != FINAL_EPOCH and body.max_records > 0 and body.max_bytes > 0
        self._hosted: list[tuple[ShareAnswer, HostedShare]] = []
        self._new: set[TopicIdPartition] = set()
        """The share partitions that were not loaded yet when the request arrived."""
        self._loads = False
        """Some of these are being loaded. A coordinator on this node has answered by the time at which the host takes
        the effects: nothing is fetched before."""

    # ---- the session -----------------------------------------------------------------------------------------------

    def enter_session(self, now: Millis) -> ErrorCode | None:
        """Open, resume or close the session by its epoch. Returns the error that ends the request, if any."""
        body, sessions = self.request.body, self.share.sessions
        epoch, connection = body.share_session_epoch, self.request.identity.address.connection_id
        places = dict.fromkeys((bytes(t.topic_id), p.partition_index) for t in body.topics for p in t.partitions)
        if epoch == INITIAL_EPOCH:
            if any(part.acknowledgement_batches for topic in body.topics for part in topic.partitions):
                return ErrorCode.INVALID_REQUEST
            before = sessions.get(self.group_id, self.member_id)
            if before is not None:
                sessions.close(before)  # the member keeps its acquired records, as in Kafka
            if not self._make_room(now, len(places), None):
                return ErrorCode.SHARE_SESSION_LIMIT_REACHED
            if not sessions.members_of(self.group_id):
                self.share.first_member_comes(now, self.group_id)
            self.session = sessions.open(self.group_id, self.member_id, connection, places)
            if self.session is None:
                return ErrorCode.SHARE_SESSION_LIMIT_REACHED
            self._introduce(self.session)
            return None
        session = sessions.resume(self.group_id, self.member_id, epoch, connection)
        if isinstance(session, ErrorCode):
            return session
        self.session = session
        self._introduce(session)
        if epoch != FINAL_EPOCH:
            more = sum(place not in session.partitions for place in places)
            if more and not self._make_room(now, len(session.partitions) + more, session):
                self.share.close_session(now, session)
                return ErrorCode.SHARE_SESSION_NOT_FOUND
            session.partitions.update(places)
            for topic in body.forgotten_topics_data:
                for index in topic.partitions:
                    session.partitions.pop((bytes(topic.topic_id), index), None)
        return None

    def _introduce(self, session: ShareSession) -> None:
        """Note in the session who uses it."""
        identity = self.request.identity
        session.client = ClientName(self.request.client_id, f"/{identity.address.client_host}")
        session.principal = identity.principal

    def _make_room(self, now: Millis, wanted: int, but: ShareSession | None) -> bool:
        """Make room for a session with this many partitions; larger ones are closed for it, if that helps."""
        going = self.share.sessions.in_the_way(wanted, but)
        for session in going or ():
            self.share.close_session(now, session)
        return going is not None

    # ---- fetching --------------------------------------------------------------------------------------------------

    def find_partitions(self, now: Millis) -> None:
        """Look up every partition of the session; an unreadable one gets its error."""
        assert self.session is not None
        if not self._fetches:
            return
        told_all = self.request.body.share_session_epoch == INITIAL_EPOCH
        for place in self.session.in_turn():
            known = self.share.known(self.group_id, place)
            if known is None or known.machine is None:
                self._new.add(place)
            error = self.may_read(place)
            hosted = self.share.get(now, self.group_id, place) if error is ErrorCode.NONE else error
            if isinstance(hosted, ErrorCode):
                self.answer_for(place).error = hosted
                continue
            answer = self.by_place.get(place)
            if answer is None:
                answer = self.answer_for(place) if told_all else ShareAnswer(place)
            self._hosted.append((answer, hosted))
            self._loads = self._loads or hosted.machine is None

    def fetch(self, now: Millis) -> bool:
        """Acquire the available records. Returns whether the request need not wait (any longer).

        As in Kafka, the request does not wait for share partitions that are loaded for it. If there is no other answer,
        the first one that has records answers it; the others follow with the next request.
        """
        if not self._hosted or not self._is_enough(now):
            return not self._hosted or self._is_due(now)
        for answer, hosted in self._hosted:
            if self._budget.took_any and answer.place in self._new:
                continue
            self._fetch_from(now, answer, hosted)
            if self._budget.records_left <= 0 or self._budget.bytes_left <= 0:
                break
        return self._budget.took_any or self._is_due(now) or any(answer.error for answer in self.answers)

    def _fetch_from(self, now: Millis, answer: ShareAnswer, hosted: HostedShare) -> None:
        machine, config = hosted.machine, hosted.config
        if self.share.known(self.group_id, answer.place) is not hosted:
            self.answer_for(answer.place).error = self.may_read(answer.place) or ErrorCode.NOT_LEADER_OR_FOLLOWER
            return
        if machine is None or config.paused:
            return
        log = hosted.partition.log
        try:
            share = self.share
            reader = ShareReader(
                now,
                machine,
                log,
                self.member_id,
                config.isolation,
                config.delayed_delivery,
                self._budget,
                answer,
                share.slices,
            )
            reader.fill(share.sessions.members_of(self.group_id) if config.fair else 1)
        except OSError as failed:
            self.share.failures.read_failed(hosted.partition, failed)
            if not answer.acquired:  # deliver the records read before it; the next fetch gets the error first
                answer.error = getattr(failed, "error_code", ErrorCode.KAFKA_STORAGE_ERROR)
        self.share.settle(now, hosted)
        if (answer.acquired or answer.error) and answer.place not in self.by_place:
            self.by_place[answer.place] = answer
            self.answers.append(answer)
        if answer.acquired:
            traffic = hosted.partition.traffic
            traffic.fetch_requests += 1
            traffic.bytes_out += answer.size

    def _is_enough(self, now: Millis) -> bool:
        """Whether min_bytes can be read. Released records count as enough, because they have waited for a long time."""
        least = self.request.body.min_bytes
        if least <= 1 or self._is_due(now):
            return True
        size = 0
        for _, hosted in self._hosted:
            machine, log = hosted.machine, hosted.partition.log
            piece = None if machine is None else machine.next_piece(now)
            if piece is None or piece.first >= readable_end(log, hosted.config.isolation):
                continue
            if piece.end is not None:
                return True
            try:
                result = log.read(
                    max(piece.first, log.log_start_offset), self.request.body.max_bytes, hosted.config.isolation
                )
            except OSError:
                return True  # the fetch that acquires there reports it
            size += 0 if result.slice is None else result.slice.length
        return size >= least

    def _is_due(self, now: Millis) -> bool:
        return now >= self._deadline

    # ---- waiting ---------------------------------------------------------------------------------------------------

    def wait(self) -> Parked:
        """Park until a share partition has something, or max_wait is over."""
        parked = Parked(self.ticket) if self.ticket is not None else self.park(self._deadline)
        if self._loads:
            self.share.parking.grew(parked.ticket, 0)
        elif not self.is_persisting:
            for _, hosted in self._hosted:
                hosted.wait(parked.ticket, self)
        return parked

    @property
    def is_held(self) -> bool:
        """Whether nothing may be fetched yet."""
        return self.is_persisting or self._loads

    def persisted(self, now: Millis) -> None:
        assert self.ticket is not None
        self.serve(now, self.ticket)

    def serve(self, now: Millis, ticket: Ticket) -> None:
        if ticket == self.ticket and not self.is_held:
            self._go_on(now, ticket)

    def at_deadline(self, now: Millis, ticket: Ticket) -> None:
        """max_wait is over, but acknowledgements that are being persisted are still awaited."""
        self.serve(now, ticket)

    def grew(self, size: int) -> bool:
        return True

    def ready(self, now: Millis, ticket: Ticket) -> None:
        """All share partitions are loaded that can be loaded at once."""
        self._loads = False
        self.serve(now, ticket)

    def _go_on(self, now: Millis, ticket: Ticket) -> None:
        if self.fetch(now):
            self._leave(ticket)
            self.ticket = None
            self.share.parking.reply(ticket, self.parts(now))
        else:
            for _, hosted in self._hosted:
                hosted.wait(ticket, self)

    def abandon(self, ticket: Ticket) -> None:
        self.ticket = None
        self._leave(ticket)

    def _leave(self, ticket: Ticket) -> None:
        for _, hosted in self._hosted:
            hosted.wait_no_more(ticket)

    def parts(self, now: Millis) -> list[Part]:
        """The encoded answer; the session of a leaving member ends here."""
        raise NotImplementedError


def _valid_batches(batches: list[Any], renews: bool) -> list[AcknowledgeBatch] | None:
    """The acknowledgements as a machine accepts them; None if one is invalid
    (KafkaApis.validateAcknowledgementBatches)."""
    valid: list[AcknowledgeBatch] = []
    previous = -1
    highest = Acknowledge.RENEW if renews else Acknowledge.REJECT
    for batch in batches:
        first, last = batch.first_offset, batch.last_offset
        if first > last or first <= previous or first < 0:
            return None
        try:
            types = bytes(batch.acknowledge_types)
        except ValueError:
            return None
        if not types or max(types) > highest or (len(types) > 1 and len(types) != last - first + 1):
            return None
        valid.append((first, last, types))
        previous = last
    return valid
