"""A group coordinator's shard on a stage: a log in memory, a clock by hand, answers collected."""

import random
from dataclasses import dataclass

from ottla.groups.history import GroupHistory
from ottla.groups.refusals import refuse
from ottla.groups.settings import GroupSettings
from ottla.groups.shard import GroupShard
from ottla.machine import AppliedBatch, AppliedRecord, Call, Decision
from ottla.protocol.errors import ErrorCode

QUICK = GroupSettings(initial_rebalance_delay_ms=0)


@dataclass(frozen=True)
class Marker:
    producer_id: int
    committed: bool


class Stage:
    """Runs a shard as the broker's host does, and can begin again from the log at any time."""

    def __init__(self, settings: GroupSettings = QUICK, seed: int = 0) -> None:
        self.settings = settings
        self.now = 1_000_000
        self.log: list[AppliedBatch | Marker] = []
        self.next_offset = 0
        self.next_ticket = 1
        self.calls: dict[int, Call] = {}
        self.answers: dict[int, object] = {}
        self.notes: list[str] = []
        self._entropy = random.Random(seed)
        self.history = GroupHistory()
        self.shard = self._new_shard()
        self._carry_out(self.shard.loaded(self.now))

    def _new_shard(self) -> GroupShard:
        return GroupShard(self.settings, self._entropy, self.notes.append, history=self.history)

    def ask(self, body: object, version: int, client_id: str = "c", client_host: str = "/127.0.0.1") -> int:
        """Decide a request; its ticket's answer is in `answers`, now or later."""
        ticket, self.next_ticket = self.next_ticket, self.next_ticket + 1
        self.calls[ticket] = Call(getattr(body, "API_KEY", -1), version, client_id, client_host, body)
        self._carry_out(self.shard.decide(self.now, ticket, self.calls[ticket]))
        return ticket

    def tick(self, ms: int) -> None:
        """Let time pass, every deadline at its own time."""
        until = self.now + ms
        while (deadline := self.shard.deadline()) is not None and deadline <= until:
            self.now = max(self.now, deadline)
            self._carry_out(self.shard.expire(self.now))
        self.now = until

    def transactional(self, producer_id: int, decision: Decision) -> None:
        """Append records as a transaction's."""
        self._append(decision, producer_id)

    def marker(self, producer_id: int, committed: bool) -> None:
        self.log.append(Marker(producer_id, committed))
        self.next_offset += 1
        self.shard.apply_marker(producer_id, 0, committed)
        self.shard.check()

    def replayed(self) -> GroupShard:
        """Another shard that has only seen the log."""
        shard = self._new_shard()
        for each in self.log:
            if isinstance(each, Marker):
                shard.apply_marker(each.producer_id, 0, each.committed)
            else:
                read = [record._replace(meaning=None) for record in each.records]
                shard.apply(self.now, each._replace(records=read))
        shard.check_durable()
        return shard

    def restart(self) -> None:
        """The shard is lost and comes back from the log; who waited is told so."""
        for ticket in sorted(self.waiting()):
            self.answers[ticket] = refuse(self.calls[ticket], ErrorCode.NOT_COORDINATOR)
        self.shard = self.replayed()
        self._carry_out(self.shard.loaded(self.now))

    def waiting(self) -> set[int]:
        return set(self.calls) - set(self.answers)

    def check(self) -> None:
        """What must hold at any time: the invariants, and that the log gives the same durable state again."""
        self.shard.check()
        assert self.replayed().image() == self.shard.image()

    def _carry_out(self, decision: Decision) -> None:
        if decision.records:
            self._append(decision)
        for answer in decision.answers:
            assert answer.ticket in self.calls, f"an answer to ticket {answer.ticket}, which nobody waits for"
            assert answer.ticket not in self.answers, f"a second answer to ticket {answer.ticket}"
            self.answers[answer.ticket] = answer.reply
        self.shard.check()

    def _append(self, decision: Decision, producer_id: int = -1) -> None:
        base = self.next_offset
        records = [AppliedRecord(base + i, self.now, *r) for i, r in enumerate(decision.records)]
        batch = AppliedBatch(base, records, producer_id, 0, producer_id >= 0)
        self.log.append(batch)
        self.next_offset += len(records)
        self.shard.apply(self.now, batch)
