"""Names the deadlines of a shard: what each is for and which group it is of."""

from enum import IntEnum


class Deadline(IntEnum):
    """What a deadline is for. Several at one time come up in the order of their groups, then of these numbers."""

    JOIN = 0
    """Of a classic group: the join phase of its rebalance ends."""
    SYNC = 1
    """Of a classic group: the sync phase of its rebalance ends."""
    SESSION = 2
    """Of a member of a classic group."""
    EXPIRE = 3
    """Of the shard: look for offsets that have expired, or go on doing so."""
    DELETED_TOPICS = 4
    """Of the shard: delete offsets of topics that are no more, or go on doing so."""
    SHARE_SESSION = 5
    """Of a member of a share group."""
    CONSUMER_SESSION = 6
    """Of a member of a consumer group."""
    CONSUMER_REVOCATION = 7
    """Of a member of a consumer group: it has let go of its partitions by then, or is out."""
    CONSUMER_ASSIGNMENT = 8
    """Of a consumer group: its next target assignment is made."""
    CONSUMER_JOIN = 9
    """Of a member of the classic protocol in a consumer group: it has joined again by then, or is out."""
    CONSUMER_SYNC = 10
    """The same: it has asked for what it is to read by then, or is out."""
    CLASSIC_REBALANCE = 11
    """Of a classic group that was a consumer group: it rebalances."""


GroupTimer = tuple[str, int, str]
"""(group id or "", Deadline, member id or "")."""
