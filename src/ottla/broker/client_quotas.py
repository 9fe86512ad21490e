"""Measures what users and clients use of this node, and says for how long who has used too much is throttled.

Knows the quotas that hold and whose each one is: of those that fit a user and a client id the most specific one counts,
and whoever it does not tell apart shares one rate. A rate is what came in the last `samples` windows; who is above it
waits for as long as it takes to come back below it. Does not know how a client is made to wait: see `quotas`.

Other nodes of the cluster are never throttled. Each node measures by itself, as Kafka's do. A change of any quota
begins to count anew.

Sources: KIP-13, KIP-55, KIP-124, KIP-257; Kafka's ClientQuotaManager.java (DefaultQuotaCallback), Rate.java,
QuotaUtils.java.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from ottla.broker.requests import Session
from ottla.machine import Millis
from ottla.metadata.image import Configs
from ottla.metadata.quotas import entity_of

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
USER: Final = "user"
CLIENT_ID: Final = "client-id"
CLIENTS_MAX: Final = 10_000
"""Of how many users with a client id it is remembered what they use; the one that was away longest is forgotten."""
_MICROS_OF_PERCENT: Final = 10_000
"""A percent of a second of the event loop."""
_NOBODY: Final = ""
"""Stands where a quota, or a rate, does not tell users or client ids apart."""

_Names = tuple[str | None, str | None]
"""User and client id of a quota; None is the default."""


class Rate:
    """How much was used in the last `samples` windows of `window_ms` each, the one that has begun among them."""

    __slots__ = ("__weakref__", "_begun", "_samples", "_window_ms")

    def __init__(self, samples: int, window_ms: int) -> None:
        self._samples = samples
        self._window_ms = window_ms
        self._begun: deque[tuple[Millis, float]] = deque()
        """When each sample began, and what was used in it."""

    def record(self, now: Millis, used: float) -> None:
        begun = self._begun
        if begun and now - begun[-1][0] < self._window_ms:
            began, before = begun.pop()
            begun.append((began, before + used))
        else:
            begun.append((now, used))

    def wait_ms(self, now: Millis, limit: float) -> int:
        """Until the rate is down to `limit` a second; 0 where it is not above."""
        begun = self._begun
        while begun and now - begun[0][0] >= self._samples * self._window_ms:
            begun.popleft()
        if not begun:
            return 0
        elapsed_ms = now - begun[0][0]
        missing = self._samples - 1 - elapsed_ms // self._window_ms
        elapsed_ms += max(missing, 0) * self._window_ms
        used = sum(used for _, used in begun)
        return max(0, round(used * 1000 / limit - max(elapsed_ms, self._window_ms)))


class _Limited(NamedTuple):
    """A limit a second, and the rate of those who share it."""

    limit: float
    rate: Rate


class _Client(NamedTuple):
    """What limits a user with a client id."""

    produced: _Limited | None
    fetched: _Limited | None
    micros: _Limited | None


class ClientQuotas:
    """Says who has used too much; a `quotas.Quotas`.

    `quotas`: as in `MetadataImage.client_quotas`; `samples`, `window_ms`: what rates are measured over; `trusts`:
    whether a request comes from a node of the cluster.
    """

    def __init__(
        self, quotas: Mapping[str, Configs], samples: int, window_ms: int, trusts: Callable[[Session, str], bool]
    ) -> None:
        self._limits = {_names(entity_of(name)): limits for name, limits in quotas.items()}
        self._samples = samples
        self._window_ms = window_ms
        self._trusts = trusts
        self._clients: dict[tuple[str, str], _Client] = {}
        self._rates: WeakValueDictionary[tuple[str, str, str], Rate] = WeakValueDictionary()

    def charge(self, now: Millis, session: Session, client_id: str, *, produced: int, fetched: int) -> int:
        """As `quotas.Quotas.charge`."""
        if self._trusts(session, client_id):
            session.charged_as = None
            return 0
        session.charged_as = client_id
        client = self._client(session, client_id)
        waits_ms = 0
        for used, limited in ((produced, client.produced), (fetched, client.fetched)):
            if used and limited is not None:
                limited.rate.record(now, used)
                waits_ms = max(waits_ms, limited.rate.wait_ms(now, limited.limit))
        if client.micros is not None:
            wait_ms = client.micros.rate.wait_ms(now, client.micros.limit)
            waits_ms = max(waits_ms, min(wait_ms, self._window_ms))
        return waits_ms

    def uncharge(self, now: Millis, session: Session, client_id: str, *, fetched: int) -> None:
        """As `quotas.Quotas.uncharge`."""
        limited = self._client(session, client_id).fetched
        if fetched and limited is not None:
            limited.rate.record(now, -fetched)

    def spent(self, now: Millis, session: Session, micros: int) -> None:
        """As `quotas.Quotas.spent`."""
        if session.charged_as is not None:
            limited = self._client(session, session.charged_as).micros
            if limited is not None:
                limited.rate.record(now, micros)

    def fetched_max(self, session: Session, client_id: str) -> int | None:
        """As `quotas.Quotas.fetched_max`: what fits into all windows but one."""
        limited = self._client(session, client_id).fetched
        if limited is None:
            return None
        return int(limited.limit * max(self._samples - 1, 1) * self._window_ms / 1000)

    def _client(self, session: Session, client_id: str) -> _Client:
        who = session.principal.partition(":")[2], client_id
        client = self._clients.pop(who, None)
        if client is None:
            client = _Client(
                self._limited(PRODUCER_BYTE_RATE, *who),
                self._limited(CONSUMER_BYTE_RATE, *who),
                self._limited(REQUEST_PERCENTAGE, *who, unit=_MICROS_OF_PERCENT),
            )
            if len(self._clients) >= CLIENTS_MAX:
                del self._clients[next(iter(self._clients))]
        self._clients[who] = client  # the last one is who came last
        return client

    def _limited(self, kind: str, user: str, client_id: str, unit: int = 1) -> _Limited | None:
        for names in _fitting(user, client_id):
            limit = self._limits.get(names, {}).get(kind)
            if limit is not None:
                sharing = kind, _NOBODY if names[0] == _NOBODY else user, _NOBODY if names[1] == _NOBODY else client_id
                rate = self._rates.get(sharing)
                if rate is None:
                    rate = self._rates[sharing] = Rate(self._samples, self._window_ms)
                return _Limited(float(limit) * unit, rate)
        return None


def _names(entity: Mapping[str, str | None]) -> _Names:
    return entity.get(USER, _NOBODY), entity.get(CLIENT_ID, _NOBODY)


def _fitting(user: str, client_id: str) -> Iterator[_Names]:
    """The quotas that fit, the most specific one first."""
    for name in (user, None):
        if client_id:
            yield name, client_id
        yield name, None
        yield name, _NOBODY
    if client_id:
        yield _NOBODY, client_id
    yield _NOBODY, None
