"""Remembers why groups rebalanced: a ring of changes for each group.

The rings are no part of a shard's state: a decision that fails to commit leaves its entry, and nothing reads them but
`DescribeObservations`. One `GroupHistory` serves all shards of a node, and outlives them.

Invariants: a group has at most `KEPT` changes, and a node at most `CHANGES_MAX`. The group that has not changed for the
longest time is dropped first. No text is longer than `TEXT_MAX` characters.
"""

from collections import deque
from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple, Protocol

from ottla.machine import WallMillis

KEPT: Final = 20
CHANGES_MAX: Final = 4_000
TEXT_MAX: Final = 100
GROUP_ID_MAX: Final = 256
"""Groups with a longer id are not remembered: a client may name one of 32 KiB."""


class Cause(IntEnum):
    """Why a group changed. The values are those of the wire."""

    JOINED = 1
    """A new member joined."""
    LEFT = 2
    """A member left, or an administrator removed it."""
    SESSION = 3
    """A member sent no heartbeat for its session timeout."""
    REBALANCE_TIMEOUT = 4
    """A member did not join, sync or give up its partitions within its rebalance timeout."""
    SUBSCRIPTION = 5
    """A member changed its subscription or its protocols."""
    PARTITIONS = 6
    """The subscribed topics have other partitions."""
    LEADER = 7
    """The leader of a classic group joined again: it has seen other partitions, or wants another assignment."""
    RETURNED = 8
    """A static member came back under another member id."""
    DISCONNECTED = 9
    """The connection of a share group's member was lost: it gets no partitions until its next heartbeat."""
    RECONNECTED = 10
    """A member of a share group whose connection was lost is back."""


class Change(NamedTuple):
    """A change of a group, with the member that caused it; PARTITIONS has none.

    `generation`: the generation or group epoch that the change ended. `timeout_ms`: the member's rebalance timeout, -1
    without a member, or if its group has none. `reason`: what the client said (KIP-800), empty if it said nothing.
    """

    at_ms: WallMillis
    generation: int
    cause: Cause
    member_id: str = ""
    client_id: str = ""
    host: str = ""
    reason: str = ""
    timeout_ms: int = -1


class Remembered(Protocol):
    """The part of a member that is remembered."""

    @property
    def member_id(self) -> str: ...

    @property
    def client_id(self) -> str: ...

    @property
    def client_host(self) -> str: ...

    @property
    def rebalance_timeout_ms(self) -> int:
        """-1 if it has none."""
        ...


class GroupHistory:
    """The rings of all groups that a node coordinates, or has coordinated."""

    __slots__ = ("_groups", "_size")

    def __init__(self) -> None:
        self._groups: dict[str, deque[Change]] = {}
        """The group that changed last is the last one."""
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def note(
        self,
        at_ms: WallMillis,
        group_id: str,
        generation: int,
        cause: Cause,
        member: Remembered | None = None,
        reason: str | None = None,
    ) -> None:
        """A group changes."""
        if len(group_id) > GROUP_ID_MAX:
            return
        ring = self._groups.pop(group_id, None)
        if ring is None:
            ring = deque[Change](maxlen=KEPT)
        self._groups[group_id] = ring
        self._size -= len(ring)
        change = Change(at_ms, generation, cause)
        if member is not None:
            change = Change(
                at_ms,
                generation,
                cause,
                member.member_id[:TEXT_MAX],
                member.client_id[:TEXT_MAX],
                member.client_host[:TEXT_MAX],
                (reason or "")[:TEXT_MAX],
                member.rebalance_timeout_ms,
            )
        ring.append(change)
        self._size += len(ring)
        while self._size > CHANGES_MAX:
            self._size -= len(self._groups.pop(next(iter(self._groups))))

    def groups(self) -> Iterator[tuple[str, tuple[Change, ...]]]:
        """Each group and its changes, oldest first."""
        return ((group_id, tuple(ring)) for group_id, ring in self._groups.items())

    def of(self, group_id: str) -> tuple[Change, ...]:
        """The changes of a group, oldest first."""
        return tuple(self._groups.get(group_id, ()))

    def check(self) -> None:
        assert self._size == sum(map(len, self._groups.values())), "the number of changes is wrong"
        assert self._size <= CHANGES_MAX, "too many changes are kept"
