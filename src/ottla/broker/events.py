"""Announces what happens on a node to the parts that depend on it, in a fixed order.

    events.leader_changed.subscribe(Order.GROUPS, groups.leader_changed)
    events.leader_changed(now, topic, partition)

A part subscribes once to each event that concerns it, when it is created. `Order` lists the subscribers: an event
reaches them in this order, whatever the order in which they subscribed. A part that is created during an event gets
this event too, if its place in the order has not passed yet.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Generic, ParamSpec

from ottla.broker.partitions.partition import Partition
from ottla.broker.partitions.replicas import LocalTopic
from ottla.machine import Millis
from ottla.metadata.topics import TopicImage

P = ParamSpec("P")


class Order(IntEnum):
    """The subscribers, in the order in which each event reaches them."""

    REQUESTS = 0
    """Parked requests: those of a lost connection are dropped first."""
    FETCH_SESSIONS = 1
    UPKEEP = 2
    COORDINATORS = 3
    """Creates the coordinators that an event is the first reason for; they get the same event next."""
    GROUPS = 4
    SHARE_STATE = 5
    TRANSACTIONS = 6
    SHARE = 7
    """After the coordinator of its state, which its share partitions ask when they load again."""
    SHARE_MEMBERS = 8
    REPLICATION = 9
    SASL = 10
    OBSERVATIONS = 11


class Event(Generic[P]):
    """One kind of event. Call it to announce one."""

    __slots__ = ("_subscribers",)

    def __init__(self) -> None:
        self._subscribers: list[Callable[P, None] | None] = [None] * len(Order)

    def subscribe(self, order: Order, act: Callable[P, None]) -> None:
        assert self._subscribers[order] is None, order
        self._subscribers[order] = act

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        for act in self._subscribers:
            if act is not None:
                act(*args, **kwargs)


class Events:
    """The events of one node."""

    __slots__ = (
        "clock_stepped",
        "disconnected",
        "features_changed",
        "leader_changed",
        "synced",
        "taken_back",
        "topic_deleted",
    )

    def __init__(self) -> None:
        self.leader_changed: Event[Millis, LocalTopic, Partition] = Event()
        """Another node now leads this partition, or this node leads it in a new epoch, or has no replica of it any
        more. Requests that wait in the partition are notified already."""
        self.topic_deleted: Event[Millis, TopicImage] = Event()
        """The topic was deleted; its replicas on this node are closed to requests already."""
        self.taken_back: Event[Millis, Partition] = Event()
        """The uncommitted end of this partition's log was cut off. No client had seen it, but a coordinator on this
        node had."""
        self.features_changed: Event[Millis] = Event()
        """The image has other levels of features."""
        self.clock_stepped: Event[Millis, int] = Event()
        """The wall clock was set forward by so many milliseconds, or back if they are negative."""
        self.synced: Event[Millis] = Event()
        """Some fsyncs have ended, and the logs know of it."""
        self.disconnected: Event[Millis, int] = Event()
        """This connection is closed."""
