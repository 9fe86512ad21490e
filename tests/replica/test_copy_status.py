"""What a replica's node reports about its data, after every series of events."""

import re
from collections.abc import Mapping
from enum import Enum
from itertools import product
from typing import Any

import pytest

from ottla.replica import copy_status, fetcher
from ottla.replica.copy_status import CopyStatus, Event, ReplicaCopy


def after(*events: Event) -> ReplicaCopy:
    data = ReplicaCopy()
    for event in events:
        if event is Event.DAMAGE:
            data.damaged(7)
        else:
            data.on(event)
    return data


def test_a_replica_with_losses_is_reported_until_its_leader_has_its_new_end() -> None:
    for loss in (Event.MAY_LACK, Event.DAMAGE, Event.LOST_ALL):
        assert after(loss).is_reported
        assert after(loss, Event.FOLLOWS).is_reported
        assert after(loss, Event.FOLLOWS, Event.CUT).is_reported
        assert after(loss, Event.FOLLOWS, Event.CUT).status is CopyStatus.REJOINING
        assert after(loss, Event.FOLLOWS, Event.CUT, Event.CONFIRMED).status is CopyStatus.COMPLETE


def test_no_series_of_events_hides_a_loss_from_a_cluster_that_counts_on_the_replica() -> None:
    """A loss is reported until the logs decide, a leader has the new end of the log, or the loss is accepted."""
    ends = {Event.UNDECIDED, Event.CONFIRMED}
    for events in product(sorted({*Event} - ends, key=lambda event: event.value), repeat=3):
        if Event.REPLACED not in events and {*events} & {Event.MAY_LACK, Event.DAMAGE, Event.LOST_ALL}:
            assert after(*events).is_reported, events


def test_damage_is_known_as_long_as_it_has_to_be_cut_off() -> None:
    for events in product(Event, repeat=3):
        data = after(*events)
        has_damage = data.status in (CopyStatus.DAMAGED, CopyStatus.DAMAGED_UNCOUNTED)
        assert (data.damaged_from == 7) == has_damage, events
        assert data.is_to_be_cut or not has_damage


def test_the_first_damage_counts() -> None:
    data = ReplicaCopy()
    assert [data.damaged(offset) for offset in (9, 12, 4)] == [9, 9, 4]


def test_a_replica_without_records_does_not_decide_who_leads_and_a_damaged_one_does() -> None:
    for loss in (Event.LOST_ALL, Event.REPLACED):
        assert not after(loss, Event.UNDECIDED).has_end
        assert not after(loss, Event.UNDECIDED).is_reported
        assert after(loss, Event.UNDECIDED, Event.LEADS).status is CopyStatus.COMPLETE
    damaged = after(Event.DAMAGE, Event.UNDECIDED)
    assert damaged.has_end
    assert not damaged.is_reported
    assert after(Event.DAMAGE, Event.UNDECIDED, Event.LEADS).is_reported


Table = dict[str, dict[str, str]]


def said(text: str, states: type[Enum], columns: str) -> Table:
    """The table of transitions in a docstring, by event and by state before. `*` stands for the rest of a name."""
    table: Table = {}
    event = ""
    names = r"[A-Z_]+\*?(?:, [A-Z_]+\*?)*"
    for line in text.split(columns)[1].splitlines():
        found = re.fullmatch(rf" {{4}}([A-Z_]+)? +({names}|any) +({names})(?::.*)?", line)
        if found is not None:
            event = found[1] or event
            befores, afters = found[2].split(", "), found[3].split(", ")
            for at, before in enumerate(befores):
                pattern = ".*" if before == "any" else before.replace("*", ".*")
                for each in states:
                    if re.fullmatch(pattern, each.name):
                        table.setdefault(event, {})[each.name] = afters[at % len(afters)]
    return table


def named(transitions: Mapping[Any, Mapping[Any, Any]]) -> Table:
    return {
        event.name: {before.name: later.name for before, later in changes.items()}
        for event, changes in transitions.items()
    }


@pytest.mark.parametrize(
    ("module", "states", "columns"),
    [
        (copy_status, CopyStatus, "event        from                                  to"),
        (fetcher, fetcher.State, "event       from        to"),
    ],
)
def test_the_table_in_the_text_is_the_table_in_the_code(module: Any, states: type[Enum], columns: str) -> None:
    assert said(module.__doc__, states, columns) == named(module.TRANSITIONS)
