"""Decides when a member sends its next heartbeat; the answer to each heartbeat contains the interval.

A member learns of a change only from the answer to its next heartbeat. So a member that moves to its target, or whose
group has just changed, gets a short interval. A stable member gets the shortest interval that the node can afford.
Together, all stable members send at most a hundred heartbeats a second, and the moving ones a thousand. A few members
learn of a change in a quarter of a second. A thousand do after `group.consumer.heartbeat.interval.ms`, as in Kafka.

Kafka's answer to every heartbeat names that interval, 5 s, so each step of a rebalance takes as long.
"""

from typing import Final

from ottla.machine import Millis

_AT_REST_MS: Final = 10
"""The node's time for each member between two heartbeats of stable members."""
_AT_REST_MS_MIN: Final = 250
_MOVING_MS: Final = 1
_MOVING_MS_MIN: Final = 40

UNSETTLED_MS: Final = 1_000
"""Time after a change of a group in which another change is likely."""


def interval_ms(members: int, longest_ms: Millis, *, moving: bool) -> Millis:
    """The interval for one of `members` members of a node. `moving`: it has something to do, or soon will."""
    if moving:
        return min(longest_ms, max(_MOVING_MS_MIN, members * _MOVING_MS))
    return min(longest_ms, max(_AT_REST_MS_MIN, members * _AT_REST_MS))
