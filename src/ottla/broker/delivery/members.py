"""Notes the connection that each member of a share group last used, so that losing it notifies the group.

The group's shard gets `ConnectionLost` and decides.

Invariant: a member is under one connection.
"""

from __future__ import annotations

from typing import TypeAlias

from ottla.broker.coordinators.shards import ShardHost
from ottla.groups.share.membership import ConnectionLost
from ottla.machine import Call, Millis

Member: TypeAlias = tuple[str, str]
"""Group id and member id."""


class ShareMembers:
    """Members by connection."""

    def __init__(self, groups: ShardHost) -> None:
        self._groups = groups
        self._of_connection: dict[int, dict[Member, None]] = {}
        self._connection_of: dict[Member, int] = {}

    def heard(self, group_id: str, member_id: str, connection: int) -> None:
        """A heartbeat of this member was accepted."""
        member = (group_id, member_id)
        if self._connection_of.get(member) != connection:
            self.left(group_id, member_id)
            self._connection_of[member] = connection
            self._of_connection.setdefault(connection, {})[member] = None

    def left(self, group_id: str, member_id: str) -> None:
        member = (group_id, member_id)
        connection = self._connection_of.pop(member, None)
        if connection is not None:
            members = self._of_connection[connection]
            del members[member]
            if not members:
                del self._of_connection[connection]

    def disconnected(self, now: Millis, connection: int) -> None:
        """A connection has closed."""
        members = self._of_connection.pop(connection, {})
        for member in members:
            del self._connection_of[member]
            self._groups.tell(now, member[0], Call(-1, 0, "", "", ConnectionLost(*member)))

    def check(self) -> None:
        assert sum(map(len, self._of_connection.values())) == len(self._connection_of)
        for connection, members in self._of_connection.items():
            for member in members:
                assert self._connection_of[member] == connection
