"""Finds the coordinator of a simulated transactional client, and records which of its requests may still take effect.

A delayed request is given up by the client and arrives later, perhaps in a later transaction. The history receives each
request that may change the coordinator's state of the id, and whether its outcome is known.
"""

from typing import Any

from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.wire import Message
from ottla.sim.clients.consumers import COORDINATOR_AWAY
from ottla.sim.clients.kafka import OF_TRANSACTIONS, PATIENCE_US, Answer, find_coordinator
from ottla.sim.clients.producers import LaneClient
from ottla.sim.clients.transaction_history import Identity, TransactionHistory
from ottla.sim.clients.workload_view import TransactionWorkloadView
from ottla.sim.kernel.clock import MS, Micros
from ottla.sim.kernel.network import Connection, Endpoint
from ottla.sim.kernel.trace import InvariantError

RETRY_US: Micros = 60 * MS

VERSIONS_OF_FIRST = {
    ApiKey.PRODUCE: (3, 11),
    ApiKey.ADD_PARTITIONS_TO_TXN: (0, 3),
    ApiKey.ADD_OFFSETS_TO_TXN: (0, 4),
    ApiKey.TXN_OFFSET_COMMIT: (3, 4),
    ApiKey.END_TXN: (0, 4),
    ApiKey.INIT_PRODUCER_ID: (0, 5),
    ApiKey.FIND_COORDINATOR: (1, 6),
}
VERSIONS_OF_SECOND = {
    ApiKey.PRODUCE: (12, 13),
    ApiKey.TXN_OFFSET_COMMIT: (5, 5),
    ApiKey.END_TXN: (5, 5),
    ApiKey.INIT_PRODUCER_ID: (4, 5),
    ApiKey.FIND_COORDINATOR: (1, 6),
}

CHANGING = frozenset({ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN})
"""Requests that may change the coordinator's state of a transactional id."""
OF_A_TRANSACTION = CHANGING | {ApiKey.PRODUCE, ApiKey.TXN_OFFSET_COMMIT}
"""Requests that affect a transaction; in the second version, all of them may change the coordinator's state."""


class TransactionalClient(LaneClient):
    """A client with a transactional id. Its name is the id, a point and a number."""

    def __init__(
        self, workload: TransactionWorkloadView, name: str, topics: tuple[str, ...], *, second_version: bool
    ) -> None:
        super().__init__(workload, name, topics)
        self.transactional_id = name.partition(".")[0]
        self.told: TransactionHistory = workload.told
        self.second_version = second_version
        bounds = VERSIONS_OF_SECOND if second_version else VERSIONS_OF_FIRST
        self.versions.update({key: self._choose_version(*each) for key, each in bounds.items()})
        self.identity: Identity | None = None
        self.late_us: Micros | None = None
        """Delay of a coming request after the client has given up waiting for it."""
        self._has_coordinator = False
        self._asking = False
        self._changing = 0
        """The number of the newest request that may change the state of the id."""
        self._may_be_late = False
        """Whether an unanswered request may still be carried out."""

    def _pump(self) -> None:
        """Send the next request."""
        raise NotImplementedError

    # ---- the coordinator -------------------------------------------------------------------------------------------

    @property
    def coordinator(self) -> Endpoint | None:
        """The endpoint of the transactional id's coordinator; None if it is unknown."""
        return self.coordinators.get((OF_TRANSACTIONS, self.transactional_id))

    def ready(self) -> None:
        if self._has_coordinator:
            self._pump()
            return
        if not (self.follows and self._asking):
            self._find(OF_TRANSACTIONS, self.transactional_id)

    def _find(self, kind: int, key: str) -> None:
        self._be_late(None)
        self._asking = True
        self.request(ApiKey.FIND_COORDINATOR, find_coordinator(kind, key), self._found_coordinator, kind, key)

    def _found_coordinator(self, message: Any, kind: int, key: str) -> None:
        if message is None or not self.running:
            return
        self._asking = False
        code = self.note_coordinator(kind, key, message)
        if code == ErrorCode.NONE:
            self._has_coordinator = self._has_coordinator or kind == OF_TRANSACTIONS
            self._pump()
        elif code in COORDINATOR_AWAY:
            self.after(RETRY_US, self._found_again if kind == OF_TRANSACTIONS else self._pump)
        else:
            raise InvariantError(f"{self.name}: FindCoordinator answers {code}")

    def _found_again(self) -> None:
        if self.connection is not None and not self._asking and not self._has_coordinator:
            self.ready()

    # ---- requests --------------------------------------------------------------------------------------------------

    def _be_late(self, at: Endpoint | None) -> None:
        """Perhaps delay the next request to that node, if a late request is due."""
        if self.connection is None or self.late_us is None or self.rng.random() < 0.5:
            return
        connection, late_us = self.to_node(at), self.late_us
        if connection is None:
            return
        self.late_us = None
        self.world.trace.add("faults", f"what {self.name} sends is late")
        connection.to_server.hold()
        give_up_us = self.rng.randrange(200 * MS)
        self.after(give_up_us, self._give_up, connection)
        self.world.agenda.after(give_up_us + late_us, connection.to_server.release)

    def _give_up(self, connection: Connection) -> None:
        if self.has(connection):
            self.hang_up(lingering=True)

    def request(
        self,
        key: int,
        message: Message,
        answer: Answer,
        *args: Any,
        at: Endpoint | None = None,
        patience_us: Micros = PATIENCE_US,
    ) -> None:
        if key in OF_A_TRANSACTION and self.connection is not None:
            number = None
            if self.second_version or key in CHANGING:
                identity = None if key == ApiKey.INIT_PRODUCER_ID else self.identity
                number = self._changing = self.told.ends.asks(self.transactional_id, identity)
            asked = self.connection.endpoint if at is None or not self.follows else at
            args, answer = (number, asked, answer, args), self._heard
        super().request(key, message, answer, *args, at=at, patience_us=patience_us)

    def _heard(
        self, message: Any, number: int | None, asked: Endpoint, answer: Answer, args: tuple[object, ...]
    ) -> None:
        # In the second version another node may finish a request of a dead one: its leader asks the coordinator.
        may_be_late = message is None and (self.second_version or self.world.network.listens(asked))
        self._may_be_late |= may_be_late
        if number is not None and may_be_late:
            self.told.ends.lost(self.world.clock.now_us, self.transactional_id, number)
        elif number is not None:
            self.told.ends.over(self.transactional_id, number)
        answer(message, *args)
