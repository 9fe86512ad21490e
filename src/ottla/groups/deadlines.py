"""Names the deadlines of a shard: their purposes, and their groups."""

from enum import IntEnum


class Deadline(IntEnum):
    """The purposes of deadlines. Simultaneous deadlines expire in the order of their groups, then of these numbers."""

    JOIN = 0
    """Of a classic group: the join phase of its rebalance ends."""
    SYNC = 1
    """Of a classic group: the sync phase of its rebalance ends."""
    SESSION = 2
    """Of a member of a classic group."""
    EXPIRE = 3
    """Of the shard: the next step of the sweep for expired offsets."""
    DELETED_TOPICS = 4
    """Of the shard: the next step of the sweep that deletes offsets of deleted topics."""
    SHARE_SESSION = 5
    """Of a member of a share group."""
    CONSUMER_SESSION = 6
    """Of a member of a consumer group."""
    CONSUMER_REVOCATION = 7
    """Of a member of a consumer group: it has revoked its partitions by then, or is removed."""
    CONSUMER_ASSIGNMENT = 8
    """Of a consumer group: its next target assignment is made."""
    CONSUMER_JOIN = 9
    """Of a member of the classic protocol in a consumer group: it has joined again by then, or is removed."""
    CONSUMER_SYNC = 10
    """Of a member of the classic protocol in a consumer group: it has asked for its assignment by then, or is
    removed."""
    CLASSIC_REBALANCE = 11
    """Of a classic group that was a consumer group: it rebalances."""


GroupTimer = tuple[str, int, str]
"""(group id or "", Deadline, member id or "")."""
