"""Runs transactions: producers that die and come back, time-outs, a node that dies at every step of an end.

On top of what every run holds: the promises of `transaction_history` at every step, those of `transaction_checkers` at
every look, and in the end no transaction under way, every last stable offset at its log's end, the coordinators' state
equal after one more death, and the audit of every log. Nothing that was promised may be lost in these runs: power cuts
come with fsync durability only.
"""

from dataclasses import replace
from typing import Any

from ottla.broker.node import Node
from ottla.sim.kernel.clock import MS
from ottla.sim.kernel.host import Host, Life
from ottla.sim.workloads.checkers import node_of, partitions_of
from ottla.sim.workloads.faults import Faults
from ottla.sim.workloads.run import Outcome, Run
from ottla.sim.workloads.transaction_checkers import TransactionWatch, audit_transactions, known_transactions
from ottla.sim.workloads.transactions import TransactionWorkload
from ottla.sim.workloads.workload import FSYNC, Plan
from ottla.txn.transaction import Transaction

STEPS_FROM_PREPARE_MAX = 12


class TransactionFaults(Faults):
    """Clients that others take the place of; a node that dies while the end of a transaction is under way."""

    def __init__(self, host: Host, workload: TransactionWorkload, plan: Plan) -> None:
        super().__init__(host, workload, plan)
        self._transactions = workload
        self.steps_from_prepare: int | None = None
        """After so many steps of the node with a prepared transaction it dies."""
        own = [(self.zombie, 3), (self.client_dies, 2), (self.die_while_ending, 4), (self.late_requests, 6)]
        self._kinds += [(act, weight) for act, weight in own if self.rng.random() < 0.7]

    def zombie(self) -> None:
        self._transactions.replace_one(dies=False)

    def client_dies(self) -> None:
        self._transactions.replace_one(dies=True)

    def late_requests(self) -> None:
        """What a client sends is long under way, and it goes on without, over another connection."""
        writing = [each for each in self._transactions.transactional if each.state != "over"]
        if writing:
            client = self.rng.choice(writing)
            client.late_us = self.rng.randrange(1_500 * MS)

    def die_while_ending(self) -> None:
        self.steps_from_prepare = self.rng.randrange(STEPS_FROM_PREPARE_MAX)

    def stepped(self, life: Life) -> None:
        """The node has made a step."""
        if self.steps_from_prepare is None or not self.active:
            return
        if not any(each.state.is_prepared for each in known_transactions(node_of(life)).values()):
            return
        self.steps_from_prepare -= 1
        if self.steps_from_prepare < 0:
            self.steps_from_prepare = None
            self.world.agenda.after(0, self.node.kill)


class TransactionsRun(Run):
    """One seed. See the module."""

    workload: TransactionWorkload

    def __init__(self, seed: int, **how: Any) -> None:
        super().__init__(seed, **how)
        self.watch = TransactionWatch(self.host, self.workload)
        self.host.watch = self._stepped

    def make_plan(self) -> Plan:
        plan = super().make_plan()
        rng = self.world.stream("transactions-plan")
        settings = {
            "transaction.state.log.num.partitions": str(rng.choice((1, 3))),
            "transaction.remove.expired.transaction.cleanup.interval.ms": "1000",
            "transactional.id.expiration.ms": rng.choice(("604800000", "604800000", "3000")),
        }
        return replace(plan, power_cuts=plan.durability == FSYNC, settings={**plan.settings, **settings})

    def make_workload(self) -> TransactionWorkload:
        return TransactionWorkload(self.host, self.plan)

    def make_faults(self) -> TransactionFaults:
        return TransactionFaults(self.host, self.workload, self.plan)

    def _stepped(self, life: Life) -> None:
        self.watch(life)
        assert isinstance(self.faults, TransactionFaults)
        self.faults.stepped(life)

    def outcome(self) -> Outcome:
        return replace(super().outcome(), transactions=self.workload.told.committed_count)

    def _missing(self) -> str | None:
        missing = super()._missing()
        if missing is not None:
            return missing
        for producer in self.workload.transactional:
            if not producer.idle:
                return f"{producer.name} is {producer.state}"
        node = node_of(self.host.life)
        for transactional_id, known in known_transactions(node).items():
            if not known.is_idle:
                return f"{transactional_id} is {known.state.name}"
        for partition in partitions_of(node):
            log = partition.log
            if not log.last_stable_offset == log.high_watermark == log.log_end_offset:
                return (
                    f"{partition.name} has last stable offset {log.last_stable_offset}, high watermark "
                    f"{log.high_watermark}, log end {log.log_end_offset}"
                )
        return None

    def image_of(self, node: Node) -> dict[str, Any]:
        image = super().image_of(node)
        for partition in partitions_of(node):
            log = partition.log
            image[f"transactions in {partition.name}"] = {
                "open": dict(log.producers.open),
                "aborted": [entry for segment in log.segments for entry in segment.txn_index.aborted()],
            }
        for transactional_id, known in known_transactions(node).items():
            image[f"transactional id {transactional_id}"] = _durable(known)
        return image

    def audit(self, node: Node) -> None:
        super().audit(node)
        audit_transactions(self.workload, node)


def _durable(known: Transaction) -> tuple[object, ...]:
    return (known.producer_id, known.producer_epoch, known.state, known.partitions, known.previous_producer_id)
