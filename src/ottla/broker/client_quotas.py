"""Measures what users and clients use of this node, and decides how long a client above its quota is throttled.

Of the quotas that match a user and a client id, the most specific one applies. All clients that this quota does not
distinguish share one rate. A client above its quota is throttled until its rate is back below the quota (`rates`).
`quotas` mutes the connections of such clients; `connection_quotas` limits how often addresses connect.

Other nodes of the cluster are never throttled. Each node measures by itself, as in Kafka. A change of any quota resets
all counts.

Sources: KIP-13, KIP-55, KIP-124, KIP-257, KIP-599; Kafka's ClientQuotaManager.java (DefaultQuotaCallback),
ControllerMutationQuotaManager.java.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from ottla.broker.channel import Channel
from ottla.broker.client_identity import Identity
from ottla.broker.rates import Bucket, Rate
from ottla.machine import Millis
from ottla.metadata.quotas import entity_of
from ottla.metadata.row_kinds import Configs

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
USER: Final = "user"
CLIENT_ID: Final = "client-id"
CLIENTS_MAX: Final = 10_000
"""How many users with a client id are tracked; beyond that, the one that was idle longest is dropped."""
_MICROS_OF_PERCENT: Final = 10_000
"""A percent of a second of the event loop."""
_NOBODY: Final = ""
"""The placeholder for a quota or rate that does not distinguish users or client ids."""

_Names = tuple[str | None, str | None]
"""User and client id of a quota; None is the default."""


class _Limited(NamedTuple):
    """A limit per second, and the rate of the clients that share it."""

    limit: float
    rate: Rate | Bucket


class _Client(NamedTuple):
    """The quotas that apply to one user with one client id."""

    produced: _Limited | None
    fetched: _Limited | None
    micros: _Limited | None
    mutated: _Limited | None


class ClientQuotas:
    """Decides which clients are above their quota; a `quotas.Quotas`.

    `quotas`: as in the image; `samples`, `window_ms`: the windows over which rates are measured; `burst_ms`: for how
    long a client that changes no partitions saves up its quota; `trusts`: whether a request comes from a node of the
    cluster.
    """

    def __init__(
        self,
        quotas: Mapping[str, Configs],
        samples: int,
        window_ms: int,
        burst_ms: int,
        trusts: Callable[[Identity, str], bool],
    ) -> None:
        self._limits = {_names(entity_of(name)): limits for name, limits in quotas.items()}
        self._samples = samples
        self._window_ms = window_ms
        self._burst_ms = burst_ms
        self._trusts = trusts
        self._clients: dict[tuple[str, str], _Client] = {}
        self._rates: WeakValueDictionary[tuple[str, str, str], Rate | Bucket] = WeakValueDictionary()

    def charge(self, now: Millis, channel: Channel, client_id: str, *, produced: int, fetched: int) -> int:
        """As `quotas.Quotas.charge`."""
        if self._trusts(channel.identity, client_id):
            channel.charged_as = None
            return 0
        channel.charged_as = client_id
        client = self._client(channel.identity, client_id)
        waits_ms = 0
        for used, limited in ((produced, client.produced), (fetched, client.fetched)):
            if used and limited is not None:
                limited.rate.record(now, used)
                waits_ms = max(waits_ms, limited.rate.wait_ms(now, limited.limit))
        if client.micros is not None:
            wait_ms = client.micros.rate.wait_ms(now, client.micros.limit)
            waits_ms = max(waits_ms, min(wait_ms, self._window_ms))
        return waits_ms

    def uncharge(self, now: Millis, channel: Channel, client_id: str, *, fetched: int) -> None:
        """As `quotas.Quotas.uncharge`."""
        limited = self._client(channel.identity, client_id).fetched
        if fetched and limited is not None:
            limited.rate.record(now, -fetched)

    def spent(self, now: Millis, channel: Channel, micros: int) -> None:
        """As `quotas.Quotas.spent`."""
        if channel.charged_as is not None:
            limited = self._client(channel.identity, channel.charged_as).micros
            if limited is not None:
                limited.rate.record(now, micros)

    def fetched_max(self, channel: Channel, client_id: str) -> int | None:
        """As `quotas.Quotas.fetched_max`: the bytes that fit into all windows but one."""
        limited = self._client(channel.identity, client_id).fetched
        if limited is None:
            return None
        return int(limited.limit * max(self._samples - 1, 1) * self._window_ms / 1000)

    def mutated(self, now: Millis, identity: Identity, client_id: str, partitions: int, *, strict: bool) -> int:
        """As `quotas.Quotas.mutated`."""
        limited = None if self._trusts(identity, client_id) else self._client(identity, client_id).mutated
        if limited is None:
            return 0
        wait_ms = limited.rate.wait_ms(now, limited.limit) if strict else 0
        if wait_ms:
            return wait_ms
        limited.rate.record(now, partitions)
        return 0 if strict else limited.rate.wait_ms(now, limited.limit)

    def _client(self, identity: Identity, client_id: str) -> _Client:
        who = identity.principal.name, client_id
        client = self._clients.pop(who, None)
        if client is None:
            client = _Client(
                self._limited(PRODUCER_BYTE_RATE, *who),
                self._limited(CONSUMER_BYTE_RATE, *who),
                self._limited(REQUEST_PERCENTAGE, *who, unit=_MICROS_OF_PERCENT),
                self._limited(CONTROLLER_MUTATION_RATE, *who),
            )
            if len(self._clients) >= CLIENTS_MAX:
                del self._clients[next(iter(self._clients))]
        self._clients[who] = client  # the last entry is the most recent
        return client

    def _limited(self, kind: str, user: str, client_id: str, unit: int = 1) -> _Limited | None:
        for names in _fitting(user, client_id):
            limit = self._limits.get(names, {}).get(kind)
            if limit is not None:
                sharing = kind, _NOBODY if names[0] == _NOBODY else user, _NOBODY if names[1] == _NOBODY else client_id
                rate = self._rates.get(sharing)
                if rate is None:
                    rate = self._rates[sharing] = self._measuring(kind, float(limit))
                return _Limited(float(limit) * unit, rate)
        return None

    def _measuring(self, kind: str, limit: float) -> Rate | Bucket:
        if kind == CONTROLLER_MUTATION_RATE:
            return Bucket(limit, self._burst_ms)
        return Rate(self._samples, self._window_ms)


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
