"""The order in which a node's parts are notified of an event."""

import pytest

from ottla.broker.events import Event, Order


def test_subscribers_are_notified_in_the_fixed_order() -> None:
    event: Event[int] = Event()
    seen: list[tuple[str, int]] = []
    event.subscribe(Order.SHARE, lambda now: seen.append(("share", now)))
    event.subscribe(Order.GROUPS, lambda now: seen.append(("groups", now)))
    event(7)
    assert seen == [("groups", 7), ("share", 7)]


def test_a_part_that_an_event_creates_gets_this_event() -> None:
    event: Event[int] = Event()
    seen: list[int] = []
    event.subscribe(Order.COORDINATORS, lambda now: event.subscribe(Order.GROUPS, seen.append))
    event(7)
    assert seen == [7]


def test_a_part_subscribes_once() -> None:
    event: Event[int] = Event()
    event.subscribe(Order.SHARE, print)
    with pytest.raises(AssertionError):
        event.subscribe(Order.SHARE, print)
