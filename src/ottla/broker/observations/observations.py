"""Collects what a node remembers of its clients, where requests are received, answered and carried out.

Invariants: `docs/operations.md` names the bytes that the rings need at most, and a test fills them. A request whose
answer has no error spends at most 0.3 us here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from ottla.broker.channel import Channel
from ottla.broker.client_identity import NODE_ITSELF, Identity
from ottla.broker.observations.config_changes import ConfigChanges, Resource
from ottla.broker.observations.errors import NO_API, TEXT_MAX, Errors
from ottla.broker.observations.long_turns import TIMERS, LongTurns
from ottla.broker.observations.slowest import Awaited, Slowest
from ottla.broker.requests import Request
from ottla.groups.history import GroupHistory
from ottla.machine import Millis, WallClock, WallMillis
from ottla.protocol.apis import ApiKey
from ottla.replica.isr_history import IsrHistory

PRIVATE_KEYS: Final = ApiKey.DESCRIBE_SHARE_PARTITIONS & ~0xFF
PRIVATE_BYTES_FROM: Final = ApiKey.DESCRIBE_SHARE_PARTITIONS & 0xFF
"""The keys of Ottla's own requests: what they share, and the lowest last byte, which no other key has."""
CONNECTIONS_MAX: Final = 10_000
"""Connections that are listed: later ones are not, until earlier ones are closed."""


class Observations:
    """The rings of one node."""

    __slots__ = ("_channels", "_wall", "configs", "errors", "groups", "isr", "long_turns", "slowest", "started_ms")

    def __init__(self, wall: WallClock) -> None:
        self._wall = wall
        self._channels: dict[int, Channel] = {}
        self.configs = ConfigChanges()
        self.groups = GroupHistory()
        self.isr = IsrHistory()
        self.errors = Errors()
        self.slowest = Slowest()
        self.long_turns = LongTurns()
        self.started_ms = WallMillis(0)
        """When the node started, which begins all counts."""

    def start(self, now: Millis) -> None:
        self.started_ms = self._wall.at(now)

    # ---- connections -----------------------------------------------------------------------------------------------

    def opened(self, channel: Channel) -> None:
        """A connection sends its first request."""
        if len(self._channels) < CONNECTIONS_MAX:
            self._channels[channel.identity.address.connection_id] = channel

    def named(self, channel: Channel, client_id: str) -> None:
        """A request of a connection that has no client id yet has this one."""
        channel.record.client_id = client_id[:TEXT_MAX]

    def disconnected(self, now: Millis, connection_id: int) -> None:
        self._channels.pop(connection_id, None)

    def connections(self) -> Iterator[Channel]:
        """The open connections that have sent a request."""
        return iter(self._channels.values())

    # ---- answers ---------------------------------------------------------------------------------------------------

    def answered(self, now: Millis, request: Request, message: Any) -> None:
        """A request is answered with this message. The node's own requests are not remembered."""
        if request.identity is not NODE_ITSELF:
            self.errors.note_answer(self._wall.at(now), request, message)

    def refused(
        self,
        now: Millis,
        channel: Channel,
        client_id: str | None,
        api_key: int,
        code: int,
        subject: str = "",
        message: str | None = None,
    ) -> None:
        """A client receives this error, about this topic, in an answer that its handler has encoded."""
        principal = str(channel.identity.principal)
        self.errors.note(self._wall.at(now), client_id or "", principal, api_key, code, subject, message)

    def stranger(self, now: Millis, identity: Identity, why: str) -> None:
        """A connection is closed because its client speaks another protocol, as `why` says."""
        host = identity.address.client_host
        self.errors.note(self._wall.at(now), "", host, NO_API, 0, host, why)

    def waited(self, now: Millis, request: Request, awaited: Awaited | None) -> None:
        """A parked request is answered. `awaited`: what it waited for, None if that is no sign of slowness."""
        took_ms = now - request.begun
        if awaited is not None and took_ms >= self.slowest.least_ms and request.identity is not NODE_ITSELF:
            self.slowest.note(now, self._wall.at(now), request, took_ms, awaited)

    # ---- changes ---------------------------------------------------------------------------------------------------

    def configured(
        self,
        now: Millis,
        request: Request,
        resource: Resource,
        before: Mapping[str, str],
        after: Mapping[str, str],
        is_sensitive: Callable[[str], bool] = lambda name: False,
    ) -> None:
        """A request has changed the configs of a resource. The node's own requests are not remembered."""
        if not request.identity.is_node:
            self.configs.note(self._wall.at(now), request, resource, before, after, is_sensitive)

    # ---- the event loop --------------------------------------------------------------------------------------------

    def stood_still(
        self, now: Millis, took_ms: int, api_key: int | None, channel: Channel | None, timer: str = ""
    ) -> None:
        """The event loop was in one turn for so long, at least `long_turns.LONG_MS`.

        `api_key`, `channel`: the last byte of the key of the request that ran, and its connection; None: timers ran.
        `timer`: the part of the node whose timer took longest.
        """
        at_ms = self._wall.at(now)
        if channel is None or api_key is None:
            self.long_turns.note(now, at_ms, took_ms, TIMERS, timer=timer)
        else:
            api_key = api_key if api_key < PRIVATE_BYTES_FROM else PRIVATE_KEYS | api_key
            who, host = channel.identity.principal, channel.identity.address.client_host
            self.long_turns.note(now, at_ms, took_ms, api_key, channel.record.client_id, str(who), host)
