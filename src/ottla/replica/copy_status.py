"""Tracks whether a replica's log has every record that the replica has acknowledged.

The start of a node decides the status of each log once; damage may be found later. Only `ReplicaCopy.on` changes it.
The node's row reports it to the cluster, which then no longer counts on this replica. A replica that is not counted
copies what it lacks from the leader.

    status              the log may lack            in the node's row   if the logs decide who leads
    COMPLETE            nothing                     no                  its end counts
    TAIL_LOST           records behind its end      yes                 (UNDECIDED comes first)
    DAMAGED             records from an offset on   yes                 (UNDECIDED comes first)
    DAMAGED_UNCOUNTED   the same                    no                  the end of its sound part counts
    EMPTY               all of its records          yes                 (UNDECIDED comes first)
    EMPTY_UNCOUNTED     the same                    no                  it has no end; the others' may do
    REJOINING           what it now copies          yes                 (UNDECIDED comes first)

The two statuses that end in UNCOUNTED are not reported, because the cluster counts on no replica of the partition, or
on none of this node. An incomplete replica may not lead, so a report would keep the logs from deciding.

An event without an entry in the table changes nothing:

    event        from                                  to
    MAY_LACK     COMPLETE                              TAIL_LOST
                 DAMAGED_UNCOUNTED, EMPTY_UNCOUNTED    DAMAGED, EMPTY
    DAMAGE       any                                   DAMAGED
    LOST_ALL     any                                   EMPTY
    REPLACED     COMPLETE                              EMPTY_UNCOUNTED
                 TAIL_LOST                             EMPTY
    UNDECIDED    TAIL_LOST, REJOINING                  COMPLETE: no other record counts any more
                 DAMAGED, EMPTY                        DAMAGED_UNCOUNTED, EMPTY_UNCOUNTED
    LEADS        DAMAGED_UNCOUNTED                     DAMAGED: another replica should lead once one is complete
                 EMPTY_UNCOUNTED                       COMPLETE: the cluster has accepted the loss
    FOLLOWS      EMPTY                                 TAIL_LOST: another replica has records
                 EMPTY_UNCOUNTED                       COMPLETE
    CUT          TAIL_LOST, DAMAGED*                   REJOINING
    CONFIRMED    REJOINING                             COMPLETE
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final


class CopyStatus(Enum):
    """See the module's docstring."""

    COMPLETE = auto()
    TAIL_LOST = auto()
    DAMAGED = auto()
    DAMAGED_UNCOUNTED = auto()
    EMPTY = auto()
    EMPTY_UNCOUNTED = auto()
    REJOINING = auto()


class Event(Enum):
    """An event that may change the status of a replica's copy."""

    MAY_LACK = auto()
    """The start of this node, or of an earlier incarnation, cannot prove that the log has its end."""
    DAMAGE = auto()
    """A stored batch is damaged, or missing within the log."""
    LOST_ALL = auto()
    """Nothing is left of a log that had records."""
    REPLACED = auto()
    """The whole data directory is a new one. The node's row reports that for all partitions together."""
    UNDECIDED = auto()
    """No replica of the partition is in sync or eligible: the logs decide who leads."""
    LEADS = auto()
    """This replica leads."""
    FOLLOWS = auto()
    """Another replica leads."""
    CUT = auto()
    """The cluster does not count on this replica, and the damaged part of its log is cut off."""
    CONFIRMED = auto()
    """The leader has the end of this log as it is since the cut."""


_S, _E = CopyStatus, Event
TRANSITIONS: Final[Mapping[Event, Mapping[CopyStatus, CopyStatus]]] = {
    _E.MAY_LACK: {
        _S.COMPLETE: _S.TAIL_LOST,
        _S.DAMAGED_UNCOUNTED: _S.DAMAGED,
        _S.EMPTY_UNCOUNTED: _S.EMPTY,
    },
    _E.DAMAGE: dict.fromkeys(_S, _S.DAMAGED),
    _E.LOST_ALL: dict.fromkeys(_S, _S.EMPTY),
    _E.REPLACED: {
        _S.COMPLETE: _S.EMPTY_UNCOUNTED,
        _S.TAIL_LOST: _S.EMPTY,
    },
    _E.UNDECIDED: {
        _S.TAIL_LOST: _S.COMPLETE,
        _S.REJOINING: _S.COMPLETE,
        _S.DAMAGED: _S.DAMAGED_UNCOUNTED,
        _S.EMPTY: _S.EMPTY_UNCOUNTED,
    },
    _E.LEADS: {_S.DAMAGED_UNCOUNTED: _S.DAMAGED, _S.EMPTY_UNCOUNTED: _S.COMPLETE},
    _E.FOLLOWS: {_S.EMPTY: _S.TAIL_LOST, _S.EMPTY_UNCOUNTED: _S.COMPLETE},
    _E.CUT: {_S.TAIL_LOST: _S.REJOINING, _S.DAMAGED: _S.REJOINING, _S.DAMAGED_UNCOUNTED: _S.REJOINING},
    _E.CONFIRMED: {_S.REJOINING: _S.COMPLETE},
}
"""The status after an event, by event and by the status before. A status that is missing stays."""

_REPORTED: Final = frozenset({_S.TAIL_LOST, _S.DAMAGED, _S.EMPTY, _S.REJOINING})
_UNMENDED: Final = frozenset(TRANSITIONS[_E.CUT])
_WITHOUT_RECORDS: Final = frozenset({_S.EMPTY, _S.EMPTY_UNCOUNTED})
_WITH_DAMAGE: Final = frozenset({_S.DAMAGED, _S.DAMAGED_UNCOUNTED})


class ReplicaCopy:
    """The status of one replica's copy of the records. `damaged_from`: the first offset that has to be copied again."""

    __slots__ = ("damaged_from", "status")

    def __init__(self) -> None:
        self.status = CopyStatus.COMPLETE
        self.damaged_from: int | None = None

    def on(self, event: Event) -> bool:
        """Returns whether the event has changed the status."""
        before = self.status
        self.status = TRANSITIONS[event].get(before, before)
        if self.status not in _WITH_DAMAGE:
            self.damaged_from = None
        return self.status is not before

    def damaged(self, offset: int) -> int:
        """Damage was found at this offset; returns the first damaged one."""
        self.damaged_from = offset if self.damaged_from is None else min(self.damaged_from, offset)
        self.on(Event.DAMAGE)
        return self.damaged_from

    @property
    def is_reported(self) -> bool:
        """Whether the node's row names this replica as incomplete."""
        return self.status in _REPORTED

    @property
    def is_to_be_cut(self) -> bool:
        """Whether the log has to be cut at the damage, or where it ends, and copied on from there."""
        return self.status in _UNMENDED

    @property
    def has_end(self) -> bool:
        """Whether the end of the log may decide who leads."""
        return self.status not in _WITHOUT_RECORDS
