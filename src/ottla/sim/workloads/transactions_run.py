"""Runs transactions: producers that die and come back, time-outs, a node that dies at every step of ending a
transaction.

In addition to the checks of every run, it checks the promises of `transaction_history` at every step, and those of
`transaction_checkers` at every check. In the end no transaction is open and every last stable offset is at its log's
end. The coordinators' state is the same after one more death, and the audit of every log passes. These runs may not
lose any promise: power cuts come with fsync durability only.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ottla.broker.node import Node
from ottla.sim.clients.transactional_states import ProducerState
from ottla.sim.kernel.clock import MS
from ottla.sim.kernel.host import Host, Life
from ottla.sim.workloads.checkers import durable, node_of, partitions_of
from ottla.sim.workloads.faults import ClientFaults, Faults
from ottla.sim.workloads.run import Run, SeedResult
from ottla.sim.workloads.transaction_checkers import (
    TransactionWatch,
    aborted_with_data,
    audit_transactions,
    compact_all,
    known_transactions,
    look_at_ends,
    missing_of_transactions,
)
from ottla.sim.workloads.transactions import TransactionWorkload
from ottla.sim.workloads.workload import FSYNC, Plan, Workload

STEPS_FROM_PREPARE_MAX = 12


class TransactionClientFaults(ClientFaults):
    """Replaces clients by others, and delays requests."""

    def __init__(self, workload: TransactionWorkload, rng: random.Random) -> None:
        super().__init__(workload, rng)
        self._transactions = workload

    def kinds(self) -> list[tuple[Callable[[], None], int]]:
        return [(self.zombie, 3), (self.client_dies, 2), (self.late_requests, 6)]

    def zombie(self) -> None:
        self._transactions.replace_one(dies=False)

    def client_dies(self) -> None:
        self._transactions.replace_one(dies=True)

    def late_requests(self) -> None:
        """Delay a client's next request; the client continues without its answer, over another connection."""
        writing = [each for each in self._transactions.transactional if each.state is not ProducerState.OVER]
        if writing:
            client = self.rng.choice(writing)
            client.late_us = self.rng.randrange(1_500 * MS)


class TransactionFaults(Faults):
    """In addition to the faults of clients, the node dies while a transaction is being ended."""

    def __init__(self, host: Host, workload: TransactionWorkload, plan: Plan) -> None:
        self._transactions = workload
        super().__init__(host, workload, plan)
        self.steps_from_prepare: int | None = None
        """Steps of the node with a prepared transaction after which it dies."""
        zombie, client_dies, late_requests = self.clients.kinds()
        own = [zombie, client_dies, (self.die_while_ending, 4), late_requests]
        self._kinds += [(act, weight) for act, weight in own if self.rng.random() < 0.7]

    def client_faults(self, workload: Workload) -> ClientFaults:
        return TransactionClientFaults(self._transactions, self.rng)

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


def transaction_settings(rng: random.Random) -> dict[str, str]:
    """Return the settings of nodes that coordinate the transactions of a run."""
    return {
        "transaction.state.log.num.partitions": str(rng.choice((1, 3))),
        "transaction.remove.expired.transaction.cleanup.interval.ms": "1000",
        "transactional.id.expiration.ms": rng.choice(("604800000", "604800000", "3000")),
    }


class TransactionsRun(Run):
    """One seed. See the module."""

    workload: TransactionWorkload

    def __init__(self, seed: int, **how: Any) -> None:
        super().__init__(seed, **how)
        self.watch = TransactionWatch(self.host, self.workload)
        self.host.watch = self._stepped

    def make_plan(self) -> Plan:
        plan = super().make_plan()
        settings = transaction_settings(self.world.stream("transactions-plan"))
        return replace(plan, power_cuts=plan.durability == FSYNC, settings={**plan.settings, **settings})

    def make_workload(self) -> TransactionWorkload:
        return TransactionWorkload(self.host, self.plan)

    def make_faults(self) -> TransactionFaults:
        return TransactionFaults(self.host, self.workload, self.plan)

    def _stepped(self, life: Life) -> None:
        self.watch(life)
        assert isinstance(self.faults, TransactionFaults)
        self.faults.stepped(life)

    def outcome(self) -> SeedResult:
        return replace(super().outcome(), transactions=self.workload.told.committed_count)

    def _missing(self) -> str | None:
        missing = super()._missing()
        if missing is not None:
            return missing
        node = node_of(self.host.life)
        if node.upkeep.compactions.busy:
            return "a compaction is under way, which a restart may end"
        return missing_of_transactions(known_transactions(node), partitions_of(node))

    def image_of(self, node: Node) -> dict[str, Any]:
        image = super().image_of(node)
        for partition in partitions_of(node):
            log = partition.log
            image[f"transactions in {partition.name}"] = {
                "open": dict(log.producers.open),
                "aborted": aborted_with_data(partition),
            }
        for transactional_id, known in known_transactions(node).items():
            image[f"transactional id {transactional_id}"] = durable(known)
        return image

    def audit(self, node: Node) -> None:
        super().audit(node)
        node.coordinators.transactions.load_all(self.host.clock.now_ms)
        look_at_ends(self.workload, known_transactions(node))
        audit_transactions(self.workload, node.replicas.get)
        compact_all(self.workload, node.replicas.get)
