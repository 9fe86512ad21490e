"""Holds what a node remembers of its clients, groups and configs, as one of Ottla's own requests returns it.

Only Ottla's nodes remember this: the checks that need it are silent on other clusters. Times are milliseconds since
1970 by the node's clock, durations are milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

JOINED: Final = 1
LEFT: Final = 2
SESSION: Final = 3
REBALANCE_TIMEOUT: Final = 4
"""Causes of a group's change, as on the wire (`docs/private-requests.md`)."""

NO_API: Final = -1
"""The API of what was no request of Kafka's protocol."""


@dataclass(frozen=True, slots=True)
class GroupChange:
    """A change of a group, with the member that caused it. `reason`: what the client said. `timeout_ms`: the member's
    rebalance timeout, -1 without a member."""

    at_ms: int
    generation: int
    cause: int
    member_id: str = ""
    client_id: str = ""
    host: str = ""
    reason: str = ""
    timeout_ms: int = -1


@dataclass(frozen=True, slots=True)
class ClientErrors:
    """How often a client has received one error code from one API. `subject`: the topic, group or transactional id."""

    client_id: str
    principal: str
    api: int
    code: int
    count: int
    first_ms: int
    last_ms: int
    subject: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class ConnectionFigures:
    """The figures of a connection since it was opened.

    `waits`: fetches that had to wait for records. `held_back`: those that waited for `max_wait_ms` although there were
    records, but fewer bytes than `min_bytes`.
    """

    id: int
    client_id: str
    principal: str
    host: str
    software: str = ""
    requests: int = 0
    received_bytes: int = 0
    throttled_ms: int = 0
    fetches: int = 0
    waits: int = 0
    held_back: int = 0
    min_bytes: int = 0
    max_wait_ms: int = 0


@dataclass(frozen=True, slots=True)
class SlowRequest:
    """One of the slowest requests of the last minutes. `awaited`: what it waited for, as on the wire."""

    took_ms: int
    at_ms: int
    api: int
    client_id: str
    principal: str
    host: str
    awaited: int


@dataclass(frozen=True, slots=True)
class LongTurn:
    """A time for which a node's event loop served one request of this client only, or timers (`NO_API`), most of it
    that of the part `timer`."""

    took_ms: int
    at_ms: int
    api: int
    client_id: str = ""
    principal: str = ""
    host: str = ""
    timer: str = ""


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """A change of a config or a quota. `old` and `new` are None where the config was not set. A long value is cut."""

    kind: int
    resource: str
    name: str
    at_ms: int
    old: str | None
    new: str | None
    principal: str
    client_id: str = ""
    host: str = ""


SLOW: Final = 1
SILENT: Final = 2
REMOVED: Final = 3
BACK: Final = 4
"""Causes of a change of the in-sync replicas, as on the wire."""


@dataclass(frozen=True, slots=True)
class IsrChange:
    """A replica left the in-sync replicas of some partitions of one leader, or is back.

    `topic` and `partition`: where it was furthest behind, by so many records and milliseconds; `silent_ms` after its
    last fetch. -1 if the leader does not know.
    """

    at_ms: int
    node: int
    cause: int
    topic: str
    partition: int
    partitions: int = 1
    records: int = -1
    behind_ms: int = -1
    silent_ms: int = -1


@dataclass(frozen=True, slots=True)
class TopicBatches:
    """The batches that a node has appended to a topic since it started, and their records and bytes."""

    topic: str
    batches: int
    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Observed:
    """The memory of one node. `started_ms`: when the node started, which begins all counts."""

    node: int
    at_ms: int
    started_ms: int = 0
    changes: dict[str, tuple[GroupChange, ...]] = field(default_factory=dict[str, tuple[GroupChange, ...]])
    errors: tuple[ClientErrors, ...] = ()
    connections: tuple[ConnectionFigures, ...] = ()
    slow: tuple[SlowRequest, ...] = ()
    batches: tuple[TopicBatches, ...] = ()
    long_turns: tuple[LongTurn, ...] = ()
    config_changes: tuple[ConfigChange, ...] = ()
    isr_changes: tuple[IsrChange, ...] = ()
