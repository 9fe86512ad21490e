"""Simulates members of a share group, well-behaved and not, and an administrator who disturbs them.

A member fetches, works for a while, and acknowledges each record: with the next fetch or separately, all of a range
with one type or each record with its own. Mostly it says first why it releases or rejects records. Some stall past
their locks, forget records, acknowledge twice or records that they never acquired, hang up midway, and open new
sessions.

Group membership is not simulated: as in Kafka, a share session is enough to get records. With several nodes, a member
has a session with one of them at a time, for the partitions that it leads.
"""

from typing import Any

from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import share_acknowledge as said
from ottla.protocol.messages import share_fetch as asked
from ottla.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from ottla.protocol.messages.explain_share_records import (
    ExplainShareRecordsRequest,
    RequestPartition,
    RequestRecord,
    RequestTopic,
)
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.sim.clients.admins import REPLICAS
from ottla.sim.clients.history import TopicPartition
from ottla.sim.clients.kafka import MOVED, KafkaClient
from ottla.sim.clients.share_history import RecordPlace
from ottla.sim.clients.workload_view import ShareWorkloadView
from ottla.sim.kernel.clock import MS
from ottla.sim.kernel.network import Endpoint
from ottla.sim.kernel.trace import InvariantError

ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
TOPIC, GROUP = 2, 32
LETTERS = "dlq.jobs"
LOCK_MS = 1_500

SESSION_GONE = frozenset(
    {
        ErrorCode.SHARE_SESSION_NOT_FOUND,
        ErrorCode.INVALID_SHARE_SESSION_EPOCH,
        ErrorCode.SHARE_SESSION_LIMIT_REACHED,
    }
)
TRY_AGAIN = frozenset(
    {
        ErrorCode.NONE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)
NOT_HELD = frozenset({ErrorCode.INVALID_RECORD_STATE, ErrorCode.INVALID_REQUEST})

GOES_ELSEWHERE, GOES_WHERE_MORE_IS = 0.05, 0.5
"""How often a member ends its session to start one with another node: while it has records, and while it has none."""

Said = dict[TopicPartition, list[tuple[int, int]]]
"""(offset, kind) by partition, in the order of offsets."""


class ShareMember(KafkaClient):
    """One member. `naughty`: probability of misbehaviour at each turn."""

    workload: ShareWorkloadView

    def __init__(self, workload: ShareWorkloadView, name: str, group: str, topic: str) -> None:
        super().__init__(workload, name, (topic,))
        self.shares = workload.shares[group]
        self.group = group
        self.topic = topic
        self.naughty = self.rng.choice((0.0, 0.05, 0.3))
        self.leaving = False
        self.held: dict[RecordPlace, int] = {}
        """Records that were delivered and not acknowledged, with their counts."""
        self._given: set[RecordPlace] = set()
        """Every record of this incarnation of the node, also forgotten ones: the node may still count them as
        acquired."""
        self._unheard = False
        """A fetch in this incarnation was not answered: the node may have acquired records for the member that it never
        received."""
        self._life = 0
        self._at: Endpoint | None = None
        """The node of its session; None: the one it is connected to."""
        self._epoch = 0
        self._busy = False
        for key in (ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE):
            self.versions[key] = self._choose_version(1, 2)
        self.versions[ApiKey.EXPLAIN_SHARE_RECORDS] = 0
        self.after(self.rng.randrange(400 * MS), self.connect)

    # ---- a session's life ------------------------------------------------------------------------------------------

    def connected(self) -> None:
        if self._life != self.workload.lives:
            self._life = self.workload.lives
            if not self.follows:  # in a cluster other nodes keep running, and remember
                self._given.clear()
                self._unheard = False
        self._busy = False
        self._begin_anew()
        super().connected()

    def gone(self) -> None:
        self._busy = False
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Start a new session; the old session's acquired records are released with it."""
        self._epoch = 0
        self.held.clear()

    def ready(self) -> None:
        self._turn()

    def leave(self) -> None:
        """Close the session and stay away for a while."""
        self.leaving = True
        if self.connection is not None and not self._busy and self._epoch:
            self._acknowledge({}, epoch=-1)

    def rejoin(self) -> None:
        self.leaving = False
        self.after(self.rng.randrange(100 * MS), self._turn)

    def hurry(self) -> None:
        """Stop misbehaving."""
        self.naughty = 0.0

    # ---- turns -----------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        """The next thing to do, one request at a time."""
        if self.connection is None or self._busy or self.leaving or self.topic not in self.known:
            return
        if self.follows and not self._epoch:
            self._at = self.leader((self.topic, self.rng.randrange(len(self.known[self.topic].partitions))))
            if self._at is None:
                self.look_again()
        if self.naughty and self.rng.random() < self.naughty / 4:
            self._misbehave()
        elif self.follows and self._epoch and self.rng.random() < (GOES_ELSEWHERE if self.held else GOES_WHERE_MORE_IS):
            self._acknowledge({}, epoch=-1)
        elif self.held and self._epoch and self.rng.random() < 0.4:
            self._explain_and_acknowledge(self._judge())
        else:
            self._fetch(self._judge() if self._epoch and self.rng.random() < 0.8 else {})

    def _again(self, least_ms: int = 1, most_ms: int = 60) -> None:
        self.after(self.rng.randrange(least_ms * MS, most_ms * MS), self._turn)

    def _judge(self) -> Said:
        """Choose acknowledgements for some of the acquired records."""
        judged: Said = {}
        if self.naughty and self.rng.random() < self.naughty:
            return judged  # dawdles
        some = self.rng.random() < 0.3
        for where, offset in sorted(self.held):
            if some and self.rng.random() < 0.5:
                continue
            chance = self.rng.random()
            kind = RELEASE if chance < 0.1 else REJECT if chance < 0.14 and not self.workload.winding_down else ACCEPT
            if self.naughty and chance > 0.95 and self.versions[ApiKey.SHARE_ACKNOWLEDGE] >= 2:
                kind = RENEW
            judged.setdefault(where, []).append((offset, kind))
        return judged

    def _misbehave(self) -> None:
        chance = self.rng.random()
        if chance < 0.3:
            self.world.trace.add(self.name, "stalls past its locks")
            self.after(self.rng.randrange(LOCK_MS * MS, 3 * LOCK_MS * MS), self._turn)
        elif chance < 0.5:
            self.world.trace.add(self.name, f"forgets {len(self.held)} records")
            self.held.clear()
            self._again()
        elif chance < 0.7 and self._epoch:
            self._acknowledge_anything()
        elif chance < 0.85:
            self.world.trace.add(self.name, "opens its session anew")
            self._epoch = 0
            self._again()
        else:
            self.hang_up(lingering=self.rng.random() < 0.5)

    def _acknowledge_anything(self) -> None:
        """Acknowledge a record that another member, or no member, has acquired."""
        index = self.rng.randrange(len(self.known[self.topic].partitions))
        known = self.history.acknowledged.get((self.topic, index), {})
        offset = self.rng.choice(list(known)) if known else self.rng.randrange(100)
        where = (self.topic, index)
        if (where, offset) in self._given:
            self._again()
            return
        self._acknowledge({where: [(offset, ACCEPT)]}, stray=True)

    # ---- fetching --------------------------------------------------------------------------------------------------

    def _fetch(self, acks: Said) -> None:
        version = self.versions[ApiKey.SHARE_FETCH]
        if version < 2 and any(kind == RENEW for each in acks.values() for _, kind in each):
            acks = {}
        renews = any(kind == RENEW for each in acks.values() for _, kind in each)
        wanted = acks if self._epoch else {where: [] for where in self._partitions()}
        parts = [
            asked.FetchPartition(where[1], [asked.AcknowledgementBatch(*batch) for batch in self._batches(each)])
            for where, each in wanted.items()
        ]
        request = asked.ShareFetchRequest(
            group_id=self.group,
            member_id=self.name,
            share_session_epoch=self._epoch,
            max_wait_ms=0 if renews else self.rng.choice((0, 100, 500)),
            min_bytes=0 if renews else self.rng.choice((1, 1, 500)),
            max_bytes=0 if renews else self.rng.choice((1, 2_000, 1 << 20)),
            max_records=0 if renews else self.rng.choice((1, 5, 100)),
            batch_size=self.rng.choice((1, 10, 500)),
            share_acquire_mode=self.rng.choice((0, 1)),
            is_renew_ack=renews,
            topics=[asked.FetchTopic(self.known[self.topic].topic_id, parts)] if parts else [],
        )
        self._note_sent(acks)
        self._busy = True
        self._epoch += 1
        self.request(ApiKey.SHARE_FETCH, request, self._fetched, acks, self._lives(), at=self._at)

    def _partitions(self) -> list[TopicPartition]:
        """Return the partitions of a session."""
        partitions = [(self.topic, i) for i in range(len(self.known[self.topic].partitions))]
        return [where for where in partitions if self.leader(where) == self._at] if self.follows else partitions

    def _lives(self) -> dict[TopicPartition, int | None]:
        """Return, for each partition, the current incarnation of the node, or in a cluster the leadership."""
        return {
            where: self.workload.leadership(self._at, where) if self.follows else self._life
            for where in self._partitions()
        }

    def _life_of(self, where: TopicPartition, asked_in: dict[TopicPartition, int | None]) -> int | None:
        """Return the incarnation in which an answer was made; None if it changed in the meantime."""
        life = asked_in.get(where)
        return life if self._lives().get(where) == life else None

    def _fetched(self, message: Any, acks: Said, asked_in: dict[TopicPartition, int | None]) -> None:
        if message is None:
            self._unheard = True
            return
        self._busy = False
        if not self._session_stands(message.error_code, "ShareFetch"):
            return
        moved = False
        for topic in message.responses:
            for part in topic.partitions:
                where = (self.topic, part.partition_index)
                life = self._life_of(where, asked_in)
                moved = moved or part.error_code in MOVED
                if where in acks:
                    self._outcome(life, where, acks[where], part.acknowledge_error_code)
                if part.error_code not in TRY_AGAIN:
                    raise InvariantError(f"{self.name}: ShareFetch of {where} answers {part.error_code}")
                if part.records is None:
                    raise InvariantError(f"{self.name}: the records of {where} are null")
                self._take(where, part, life)
        if moved:
            self._look_elsewhere()
        self._again(1, 120)

    def _look_elsewhere(self) -> None:
        """Leave a node that does not lead a partition of the session any more."""
        if self.follows:
            self._begin_anew()
            self.look_again()

    def _take(self, where: TopicPartition, part: Any, life: int | None) -> None:
        batches = self.batches_of(part)
        if batches is None:
            return  # its locks expire
        sent: set[int] = set()
        for batch in batches:
            self.history.see(self.name, where, batch)
            sent.update(note.offset for note in batch.notes)
        for each in part.acquired_records:
            for offset in range(each.first_offset, each.last_offset + 1):
                if offset not in sent:
                    raise InvariantError(f"{self.name}: {where} says {offset} is acquired and does not send it")
                self.shares.deliver(self.name, life, (where, offset), each.delivery_count)
                self.held[(where, offset)] = each.delivery_count
                self._given.add((where, offset))

    # ---- acknowledging ---------------------------------------------------------------------------------------------

    def _explain_and_acknowledge(self, acks: Said) -> None:
        """Acknowledge, mostly after saying why some of the records are given back."""
        failed = {
            where: records
            for where, each in acks.items()
            if (records := [offset for offset, kind in each if kind in (RELEASE, REJECT)])
        }
        if not failed or self.rng.random() < 0.3:
            self._acknowledge(acks)
            return
        reasons = {where: [self._reason(where, offset) for offset in offsets] for where, offsets in failed.items()}
        parts = [RequestPartition(where[1], records) for where, records in reasons.items()]
        request = ExplainShareRecordsRequest(self.group, self.name, [RequestTopic(self.topic, parts)])
        self._busy = True
        how = acks, reasons, self._lives()
        self.request(ApiKey.EXPLAIN_SHARE_RECORDS, request, self._explained, *how, at=self._at)

    def _reason(self, where: TopicPartition, offset: int) -> RequestRecord:
        count = self.held[where, offset]
        text = f"{self.name} fails at {offset} of {where[1]} in delivery {count}: {self.rng.randrange(1000)}"
        self.shares.reasons.setdefault((where, offset), set()).add(text)
        return RequestRecord(offset, count, text)

    def _explained(
        self,
        message: Any,
        acks: Said,
        reasons: dict[TopicPartition, list[RequestRecord]],
        asked_in: dict[TopicPartition, int | None],
    ) -> None:
        if message is None:
            return
        self._busy = False
        if message.error_code:
            raise InvariantError(f"{self.name}: ExplainShareRecords answers {message.error_code}")
        for part in message.topics[0].partitions:
            where = (self.topic, part.partition_index)
            if part.error_code not in TRY_AGAIN:
                raise InvariantError(f"{self.name}: explaining records of {where} answers {part.error_code}")
            life = self._life_of(where, asked_in)
            for given, result in zip(reasons[where], part.records, strict=not part.error_code):
                if result.error_code == ErrorCode.NONE and life is not None:
                    self.shares.explain(life, (where, given.offset), given.delivery_count, given.reason)
                elif result.error_code not in (ErrorCode.NONE, ErrorCode.INVALID_RECORD_STATE):
                    raise InvariantError(f"{self.name}: explaining {given.offset} answers {result.error_code}")
        if self._epoch:
            self._acknowledge(acks)
        else:
            self._again()

    def _acknowledge(self, acks: Said, *, epoch: int | None = None, stray: bool = False) -> None:
        parts = [
            said.AcknowledgePartition(where[1], [said.AcknowledgementBatch(*batch) for batch in self._batches(each)])
            for where, each in acks.items()
        ]
        renews = any(kind == RENEW for each in acks.values() for _, kind in each)
        request = said.ShareAcknowledgeRequest(
            group_id=self.group,
            member_id=self.name,
            share_session_epoch=self._epoch if epoch is None else epoch,
            is_renew_ack=renews,
            topics=[said.AcknowledgeTopic(self.known[self.topic].topic_id, parts)] if parts else [],
        )
        if not stray or self._unheard:
            self._note_sent(acks)
        self._busy = True
        self._epoch += 1
        how = acks, epoch == -1, stray, self._lives()
        self.request(ApiKey.SHARE_ACKNOWLEDGE, request, self._acknowledged, *how, at=self._at)

    def _acknowledged(
        self, message: Any, acks: Said, good_bye: bool, stray: bool, asked_in: dict[TopicPartition, int | None]
    ) -> None:
        if message is None:
            return
        self._busy = False
        if good_bye:
            self._begin_anew()
            self._again()
            return
        if not self._session_stands(message.error_code, "ShareAcknowledge"):
            return
        for topic in message.responses:
            for part in topic.partitions:
                where = (self.topic, part.partition_index)
                if stray:
                    self._stray_outcome(where, acks[where], part.error_code)
                else:
                    self._outcome(self._life_of(where, asked_in), where, acks[where], part.error_code)
        if any(part.error_code in MOVED for topic in message.responses for part in topic.partitions):
            self._look_elsewhere()
        self._again()

    def _batches(self, acks: list[tuple[int, int]]) -> list[tuple[int, int, list[int]]]:
        """Combine neighbouring records into one batch, with one type for all or one for each."""
        batches: list[tuple[int, int, list[int]]] = []
        for offset, kind in acks:
            if batches and batches[-1][1] == offset - 1:
                first, _, kinds = batches[-1]
                batches[-1] = (first, offset, [*kinds, kind])
            else:
                batches.append((offset, offset, [kind]))
        return [
            (first, last, kinds[:1] if len(set(kinds)) == 1 and self.rng.random() < 0.5 else kinds)
            for first, last, kinds in batches
        ]

    def _note_sent(self, acks: Said) -> None:
        for where, each in acks.items():
            for offset, kind in each:
                if kind == ACCEPT:
                    self.shares.accept_sent.add((where, offset))

    def _outcome(self, life: int | None, where: TopicPartition, acks: list[tuple[int, int]], code: int) -> None:
        """Record the outcome of acknowledgements for records that this member received; its locks may have expired."""
        if code not in TRY_AGAIN and code not in NOT_HELD:
            raise InvariantError(f"{self.name}: acknowledging in {where} answers {code}")
        for offset, kind in acks:
            place = (where, offset)
            count = self.held.get(place)
            if code == ErrorCode.NONE:
                if kind != RENEW:
                    self.held.pop(place, None)
                    if count is not None:
                        self.shares.confirm(life, place, kind, count)
            elif code in NOT_HELD:
                self.held.pop(place, None)

    def _stray_outcome(self, where: TopicPartition, acks: list[tuple[int, int]], code: int) -> None:
        if code == ErrorCode.NONE and self._unheard:
            return
        if code == ErrorCode.NONE:
            start_offset = self.workload.share_start_offset(self.group, where, self._life)
            for offset, _ in acks:
                if start_offset is not None and offset >= start_offset:
                    raise InvariantError(
                        f"{self.name} holds nothing of {where} and accepts {offset}, beyond {start_offset}"
                    )
        elif code not in NOT_HELD and code not in TRY_AGAIN:
            raise InvariantError(f"{self.name}: acknowledging what it does not hold in {where} answers {code}")

    def _session_stands(self, code: int, what: str) -> bool:
        if code == ErrorCode.NONE:
            return True
        if code not in SESSION_GONE:
            raise InvariantError(f"{self.name}: {what} answers {code}")
        self._begin_anew()
        self._again(50, 300)
        return False


class ShareAdmin(KafkaClient):
    """Makes the dead-letter topic, configures the groups, and keeps changing both until everything heals."""

    workload: ShareWorkloadView

    def __init__(self, workload: ShareWorkloadView, name: str) -> None:
        super().__init__(workload, name)
        self.disturbs = True
        self.at_rest = False
        """The last configuration is in force: nothing is paused and dead letters are accepted."""
        self._is_set = False
        """It was in force once; delayed requests of a broken connection may have come after it."""
        self.begun = False
        self.connect()

    def ready(self) -> None:
        if not self.begun:
            enabled = CreatableTopicConfig("errors.deadletterqueue.group.enable", "true")
            topic = CreatableTopic(LETTERS, 1, min(REPLICAS, len(self.workload.bootstraps)), configs=[enabled])
            self.request(ApiKey.CREATE_TOPICS, CreateTopicsRequest([topic], 5_000), self._made)
        elif not self.disturbs:
            self._settle()

    def _made(self, message: Any) -> None:
        if message is None:
            return
        if message.topics[0].error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            self._configure_groups(self._configured)
        else:
            self.after(200 * MS, self._once_more)

    def _once_more(self) -> None:
        if self.connection is not None:
            self.ready()

    def _configure_groups(self, then: Any) -> None:
        resources = [
            AlterConfigsResource(GROUP, group, [AlterableConfig(name, 0, value) for name, value in configs.items()])
            for group, configs in self.workload.group_configs.items()
        ]
        self.request(ApiKey.INCREMENTAL_ALTER_CONFIGS, IncrementalAlterConfigsRequest(resources, False), then)

    def _configured(self, message: Any) -> None:
        if message is None:
            return
        if any(each.error_code for each in message.responses):
            self.after(200 * MS, self._once_more)  # the metadata store may be on a full disk
            return
        self.begun = True
        self.workload.groups_stand()
        self.after(self.rng.randrange(2_000 * MS), self._disturb)

    def _disturb(self) -> None:
        if not self.disturbs:
            return
        self.after(self.rng.randrange(300 * MS, 2_500 * MS), self._disturb)
        if self.rng.random() < 0.4:
            self._set(TOPIC, LETTERS, "errors.deadletterqueue.group.enable", self.rng.choice(("true", "false")))
        else:
            group = self.rng.choice(list(self.workload.group_configs))
            name, values = self.rng.choice(
                (
                    ("share.delivery.paused", ("true", "false", "false")),
                    ("share.retry.backoff.ms", ("0", "200", "1000")),
                    ("share.partition.max.record.locks", ("100", "2000")),
                )
            )
            self._set(GROUP, group, name, self.rng.choice(values))

    def _set(self, kind: int, resource: str, name: str, value: str) -> None:
        change = AlterConfigsResource(kind, resource, [AlterableConfig(name, 0, value)])
        self.request(ApiKey.INCREMENTAL_ALTER_CONFIGS, IncrementalAlterConfigsRequest([change], False), self._heard)

    def _heard(self, message: Any) -> None:
        """Ignore the result, because the next change comes anyway."""

    def wind_down(self) -> None:
        """Accept dead letters and resume everything from now on."""
        self.disturbs = False
        self._settle()

    def _settle(self) -> None:
        if self.at_rest or not self.begun or self.connection is None:
            return
        changes = [
            AlterConfigsResource(TOPIC, LETTERS, [AlterableConfig("errors.deadletterqueue.group.enable", 0, "true")]),
            *(
                AlterConfigsResource(GROUP, group, [AlterableConfig("share.delivery.paused", 0, "false")])
                for group in self.workload.group_configs
            ),
        ]
        self.request(ApiKey.INCREMENTAL_ALTER_CONFIGS, IncrementalAlterConfigsRequest(changes, False), self._settled)

    def _settled(self, message: Any) -> None:
        if message is None:
            return
        done = all(each.error_code == ErrorCode.NONE for each in message.responses)
        self.at_rest = done and self._is_set
        if not self.at_rest:
            self.after((5_000 if done else 300) * MS, self._settle)
        self._is_set = self._is_set or done
