"""Decides how soon a member is to send its next heartbeat, which the answer to each one says.

A member hears of a change at its next heartbeat and not before. So one that is on its way to its target, or whose group
has just changed, is asked to come back soon; one at rest as soon as the node can bear: all members at rest together
send a hundred heartbeats a second at most, those on their way a thousand. A few members hear of a change in a quarter
of a second, a thousand after `group.consumer.heartbeat.interval.ms`, as often as Kafka's do.

Kafka's answer to every heartbeat names that interval, 5 s: each step of a rebalance takes as long.
"""

from typing import Final

from ottla.machine import Millis

_AT_REST_MS: Final = 10
"""Of the node's time between two heartbeats of members at rest, for each member."""
_AT_REST_MS_MIN: Final = 250
_MOVING_MS: Final = 1
_MOVING_MS_MIN: Final = 40

UNSETTLED_MS: Final = 1_000
"""So long after a change of a group another one is likely."""


def interval_ms(members: int, longest_ms: Millis, *, moving: bool) -> Millis:
    """The interval for one of `members` members of a node. `moving`: it has something to do, or soon will."""
    if moving:
        return min(longest_ms, max(_MOVING_MS_MIN, members * _MOVING_MS))
    return min(longest_ms, max(_AT_REST_MS_MIN, members * _AT_REST_MS))
