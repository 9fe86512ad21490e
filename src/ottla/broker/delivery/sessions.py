"""Keeps share sessions (KIP-932): which partitions a member of a share group reads here, over which connection.

A session has its partitions in the order in which they were added, and the epoch that the next request must carry. The
code that closes a session releases the records that its member has acquired.

Epochs: 0 opens, each request carries the next one, -1 closes; after 2^31 - 1 comes 1. A session lives as long as its
connection: a lost connection closes the sessions that were opened over it.

Invariants: at most `group.share.max.share.sessions`, with `PARTITIONS_MAX` partitions together. If these do not
suffice, the largest sessions are closed, including the newcomer. A session is under its connection exactly while it is
open.

Source: Kafka's ShareSessionCache.java, SharePartitionManager.newContext, ShareRequestMetadata.java.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple, TypeAlias

from ottla.broker.client_identity import ANONYMOUS, Principal
from ottla.broker.config.live import LiveSettings
from ottla.protocol.errors import ErrorCode

INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
_EPOCH_MAX: Final = (1 << 31) - 1

PARTITIONS_MAX: Final = 200_000
"""Twice what a node may have; each needs some 200 bytes."""

TopicIdPartition: TypeAlias = tuple[bytes, int]
"""Topic id and partition index."""


class ClientName(NamedTuple):
    """A member's client id, and its network address behind a slash, as Kafka shows it."""

    client_id: str
    host: str


NO_CLIENT: Final = ClientName("", "")
CLIENT_ID_CHARS_MAX: Final = 128
"""A longer client id is cut where it is shown."""


class ShareSession:
    """One member's session with this node. `principal`: the one that its last request for records came from."""

    __slots__ = ("client", "connection", "epoch", "group_id", "member_id", "partitions", "principal")

    def __init__(
        self, group_id: str, member_id: str, connection: int, partitions: dict[TopicIdPartition, None]
    ) -> None:
        self.group_id = group_id
        self.member_id = member_id
        self.connection = connection
        self.partitions = partitions
        self.epoch = 1
        self.client: ClientName = NO_CLIENT
        self.principal: Principal = ANONYMOUS

    def advance(self) -> None:
        self.epoch = self.epoch + 1 if self.epoch < _EPOCH_MAX else 1

    def in_turn(self) -> list[TopicIdPartition]:
        """The partitions, starting with a different one at every request, so that each is first in its turn."""
        places = list(self.partitions)
        if len(places) > 1:
            at = self.epoch % len(places)
            places = places[at:] + places[:at]
        return places


class ShareSessions:
    """Every session of this node."""

    def __init__(self, settings: LiveSettings) -> None:
        self._settings = settings
        self._sessions: dict[tuple[str, str], ShareSession] = {}
        self._of_connection: dict[int, dict[tuple[str, str], None]] = {}
        self._members: dict[str, int] = {}

    def members_of(self, group_id: str) -> int:
        """How many sessions the group has."""
        return self._members.get(group_id, 0)

    def __len__(self) -> int:
        return len(self._sessions)

    def open(
        self, group_id: str, member_id: str, connection: int, places: dict[TopicIdPartition, None]
    ) -> ShareSession | None:
        """A new session; the member's earlier one must have been closed. None if there are too many."""
        key = (group_id, member_id)
        assert key not in self._sessions
        if len(self._sessions) >= self._settings["group.share.max.share.sessions"]:
            return None
        session = self._sessions[key] = ShareSession(group_id, member_id, connection, places)
        self._of_connection.setdefault(connection, {})[key] = None
        self._members[group_id] = self._members.get(group_id, 0) + 1
        return session

    def in_the_way(self, wanted: int, but: ShareSession | None) -> list[ShareSession] | None:
        """The sessions to close so that `wanted` partitions fit beside those of the sessions without `but`.

        None if they can't fit: no larger session could be closed.
        """
        others = [session for session in self._sessions.values() if session is not but]
        total = wanted + sum(len(session.partitions) for session in others)
        if total <= PARTITIONS_MAX:
            return []
        going: list[ShareSession] = []
        for session in sorted(others, key=lambda session: len(session.partitions), reverse=True):
            if total <= PARTITIONS_MAX or len(session.partitions) <= wanted:
                break
            going.append(session)
            total -= len(session.partitions)
        return going if total <= PARTITIONS_MAX else None

    def get(self, group_id: str, member_id: str) -> ShareSession | None:
        return self._sessions.get((group_id, member_id))

    def client_id_of(self, group_id: str, member_id: str) -> str:
        """The client id of a member, which may be cut; empty if it has no session."""
        session = self.get(group_id, member_id)
        return "" if session is None else session.client.client_id[:CLIENT_ID_CHARS_MAX]

    def resume(self, group_id: str, member_id: str, epoch: int, connection: int) -> ShareSession | ErrorCode:
        """The open session whose next epoch this is; FINAL_EPOCH is always accepted."""
        session = self._sessions.get((group_id, member_id))
        if session is None:
            return ErrorCode.SHARE_SESSION_NOT_FOUND
        if epoch != FINAL_EPOCH:
            if epoch != session.epoch:
                return ErrorCode.INVALID_SHARE_SESSION_EPOCH
            session.advance()
        if session.connection != connection:
            # The member opened a new connection before the loss of the old one was noticed.
            self._leave_connection(session)
            session.connection = connection
            self._of_connection.setdefault(connection, {})[(group_id, member_id)] = None
        return session

    def close(self, session: ShareSession) -> None:
        del self._sessions[(session.group_id, session.member_id)]
        left = self._members[session.group_id] - 1
        if left:
            self._members[session.group_id] = left
        else:
            del self._members[session.group_id]
        self._leave_connection(session)

    def every(self) -> list[ShareSession]:
        return list(self._sessions.values())

    def of_connection(self, connection: int) -> list[ShareSession]:
        return [self._sessions[key] for key in self._of_connection.get(connection, ())]

    def connections(self) -> AbstractSet[int]:
        """Those that sessions were opened over."""
        return self._of_connection.keys()

    def _leave_connection(self, session: ShareSession) -> None:
        keys = self._of_connection[session.connection]
        del keys[(session.group_id, session.member_id)]
        if not keys:
            del self._of_connection[session.connection]

    def check(self) -> None:
        assert sum(len(session.partitions) for session in self._sessions.values()) <= PARTITIONS_MAX
        assert sum(map(len, self._of_connection.values())) == len(self._sessions)
        assert sum(self._members.values()) == len(self._sessions)
        for connection, keys in self._of_connection.items():
            for key in keys:
                assert self._sessions[key].connection == connection
