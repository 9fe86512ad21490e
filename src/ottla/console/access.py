"""Gives pages a client of the cluster: a few per session, with a deadline, and refusing every request that changes.

`ottla.client` blocks, so pages run on threads. A request that is not in `READS` is refused below all pages, unless a
change that the user has confirmed is being applied, and never with --read-only. With --no-records, a request is refused
too that reads records, or the reasons that members of share groups gave, which may quote records.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from ottla.client.client import Client
from ottla.client.connection import Connection, Posted
from ottla.client.errors import BadResponseError, ClientError, ConnectionClosedError, TimedOutError
from ottla.client.sasl import Login
from ottla.protocol.apis import APIS, ApiKey
from ottla.protocol.messages.describe_share_partitions import DescribeSharePartitionsRequest
from ottla.protocol.messages.read_together import InnerRequest, ReadTogetherRequest
from ottla.protocol.private_requests import READABLE
from ottla.protocol.wire import Message

T = TypeVar("T")
CONNECT_S: Final = 3.0
CLIENTS_MAX: Final = 4
"""Clients of one session, each with its own connections."""
IDLE_S: Final = 60.0
"""Seconds after which an unused client is closed: a console that is not used holds no connections."""
READS: Final = frozenset(
    {
        ApiKey.API_VERSIONS,
        ApiKey.SASL_HANDSHAKE,
        ApiKey.SASL_AUTHENTICATE,
        ApiKey.METADATA,
        ApiKey.FETCH,
        ApiKey.LIST_OFFSETS,
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        ApiKey.FIND_COORDINATOR,
        ApiKey.OFFSET_FETCH,
        ApiKey.LIST_GROUPS,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        ApiKey.SHARE_GROUP_DESCRIBE,
        ApiKey.STREAMS_GROUP_DESCRIBE,
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
        ApiKey.READ_SHARE_GROUP_STATE,
        ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
        ApiKey.DESCRIBE_SHARE_PARTITIONS,
        ApiKey.DESCRIBE_OBSERVATIONS,
        ApiKey.READ_TOGETHER,
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.LIST_CONFIG_RESOURCES,
        ApiKey.DESCRIBE_LOG_DIRS,
        ApiKey.DESCRIBE_CLUSTER,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        ApiKey.DESCRIBE_QUORUM,
        ApiKey.DESCRIBE_PRODUCERS,
        ApiKey.DESCRIBE_TRANSACTIONS,
        ApiKey.LIST_TRANSACTIONS,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        ApiKey.DESCRIBE_ACLS,
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
    }
)
"""The APIs that change nothing."""
FETCHES: Final = frozenset({ApiKey.FETCH, ApiKey.SHARE_FETCH})
"""The APIs whose answers hold records."""


class ReadOnlyError(ClientError):
    """A request would have changed the cluster where only reading is allowed."""


class RecordsHiddenError(ReadOnlyError):
    """A request would have read records where they are hidden."""

    def __init__(self) -> None:
        super().__init__("This console shows no records: it was started with --no-records.")


@dataclass(slots=True)
class Limits:
    """Limits of one client's connections: a deadline, and whether they may change the cluster and read records."""

    until: float = 0.0
    may_change: bool = False
    may_fetch: bool = True
    sent: int = 0

    def left_s(self) -> float:
        """Seconds until the deadline. Raises TimedOutError after it."""
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimedOutError("The cluster did not answer in time.")
        return left

    def admit(self, message: Message) -> None:
        """Count a request. Raises ReadOnlyError if it would change the cluster or read records, and may not."""
        if not self.may_fetch and message.API_KEY in FETCHES:
            raise RecordsHiddenError
        inner = message.requests if isinstance(message, ReadTogetherRequest) else ()
        if not self.may_fetch and (_wants_reasons(message) or any(map(_inner_wants_reasons, inner))):
            raise RecordsHiddenError
        if not READABLE.issuperset(each.api_key for each in inner):
            raise ReadOnlyError("Requests that are sent together may only describe the cluster.")
        creates = message.API_KEY == ApiKey.METADATA and getattr(message, "allow_auto_topic_creation", False)
        if not self.may_change and (message.API_KEY not in READS or creates):
            raise ReadOnlyError(f"{APIS[message.API_KEY].name} is refused: only reading is allowed here.")
        self.sent += 1


def _wants_reasons(message: Message) -> bool:
    """Whether the answer has reasons that members of share groups gave, which may quote records."""
    return isinstance(message, DescribeSharePartitionsRequest) and message.with_reasons


def _inner_wants_reasons(inner: InnerRequest) -> bool:
    """The same, for a request in ReadTogether."""
    if inner.api_key != ApiKey.DESCRIBE_SHARE_PARTITIONS:
        return False
    return _wants_reasons(DescribeSharePartitionsRequest.decode(inner.content, 0, inner.version)[0])


class LimitedConnection(Connection):
    """A connection whose requests obey the limits of its client."""

    def __init__(self, host: str, port: int, *, limits: Limits, timeout_s: float, **options: Any) -> None:
        self._limits = limits
        super().__init__(host, port, timeout_s=min(timeout_s, CONNECT_S, limits.left_s()), **options)

    def post(self, message: Message, version: int | None = None, *, answered: bool = True) -> Posted:
        self._limits.admit(message)
        self.wait_at_most(self._limits.left_s())
        return super().post(message, version, answered=answered)


@dataclass(frozen=True, slots=True)
class Lease:
    """A client that one request of a browser uses alone, and its limits."""

    client: Client
    limits: Limits
    since: float = field(default_factory=time.monotonic)


class Clients:
    """The clients of one session: made when needed, kept while used."""

    def __init__(
        self,
        bootstrap: str,
        tls: ssl.SSLContext | None,
        login: Login | None,
        *,
        deadline_s: float,
        read_only: bool,
        no_records: bool = False,
    ) -> None:
        self._bootstrap, self._tls, self.login = bootstrap, tls, login
        self._deadline_s, self._read_only, self._no_records = deadline_s, read_only, no_records
        self._lock = threading.Lock()
        self._idle: list[Lease] = []
        self._free = threading.BoundedSemaphore(CLIENTS_MAX)

    def read(self, work: Callable[[Lease], T]) -> T:
        """The result of reading from the cluster; once more with new connections if an old one turns out to be closed.
        Raises ClientError."""
        until, sent = time.monotonic() + self._deadline_s, 0
        try:
            with self._lease(until) as lease:
                sent = lease.limits.sent
                return work(lease)
        except ConnectionClosedError:
            if not sent:
                raise
            self.close()
        with self._lease(until) as lease:
            return work(lease)

    def change(self, work: Callable[[Lease], T]) -> T:
        """The result of work that changes the cluster; never repeated. Raises ClientError, with --read-only always."""
        if self._read_only:
            raise ReadOnlyError("This console is read-only: it was started with --read-only.")
        self.close()  # an old connection could turn out to be closed in the middle of the change
        with self._lease(time.monotonic() + self._deadline_s, may_change=True) as lease:
            return work(lease)

    def close(self) -> None:
        """Close the clients that no request uses now."""
        with self._lock:
            idle, self._idle = self._idle, []
        for each in idle:
            each.client.close()

    def close_idle(self, now: float) -> None:
        """Close the clients that no request has used for a while."""
        with self._lock:
            old = [each for each in self._idle if now - each.since > IDLE_S]
            self._idle = [each for each in self._idle if each not in old]
        for each in old:
            each.client.close()

    @contextmanager
    def _lease(self, until: float, *, may_change: bool = False) -> Iterator[Lease]:
        if not self._free.acquire(timeout=max(0.0, until - time.monotonic())):
            raise TimedOutError("Too many requests of this session wait for the cluster.")
        try:
            lease = self._taken()
            lease.limits.until, lease.limits.may_change = until, may_change
            try:
                yield lease
            except (ConnectionClosedError, TimedOutError, BadResponseError):
                lease.client.close()
                raise
            except BaseException:
                self._give_back(lease)
                raise
            self._give_back(lease)
        finally:
            self._free.release()

    def _taken(self) -> Lease:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        limits = Limits(may_fetch=not self._no_records)

        def connect(host: str, port: int, **options: Any) -> Connection:
            return LimitedConnection(host, port, limits=limits, **options)

        client = Client(
            self._bootstrap,
            client_id="ottla-console",
            timeout_s=self._deadline_s,
            tls=self._tls,
            login=self.login,
            connect=connect,
        )
        return Lease(client, limits)

    def _give_back(self, lease: Lease) -> None:
        lease.limits.may_change = False
        with self._lock:
            self._idle.append(Lease(lease.client, lease.limits))
