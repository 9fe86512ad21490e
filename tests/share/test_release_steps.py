"""What a member releases or acknowledges goes in steps: the same in the end, and nothing that it holds anew."""

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.share.partition import SharePartition
from ottla.share.settings import ShareSettings
from ottla.share.standing import DeliveryState

RECORDS = 20


def held(lock_ms: int = 1_000) -> SharePartition:
    """Every record is a run of its own: three of four are held by `a`, the others by `b`."""
    machine = SharePartition(ShareSettings(lock_duration_ms=lock_ms), 0)
    for offset in range(RECORDS):
        machine.acquire(offset * 100, "b" if offset % 4 == 3 else "a", offset, offset + 1)
    machine.take_writes()
    return machine


def standings(machine: SharePartition) -> list[tuple[int, int, DeliveryState]]:
    return list(machine.runs.within(machine.start, machine.end))


@pytest.mark.parametrize("step", [1, 3, 7])
def test_in_steps_as_in_one_go(step: int) -> None:
    now = RECORDS * 100
    whole, machine = held(1_000_000), held(1_000_000)
    assert whole.release_member(now, "a") == RECORDS - 1, "behind the last one nothing is looked at"
    looked = [machine.release_member(now, "a", step)]
    while (machine.deadline() or 0) <= now:
        looked.append(machine.expire(now, step))
        assert looked[-1]
    assert set(looked[:-1]) == {step}
    assert sum(looked) == RECORDS - 1
    assert standings(machine) == standings(whole)
    assert machine.held == whole.held == {"b": RECORDS // 4}
    remembered = [batch for write in machine.take_writes() for batch in write.batches]
    assert sum(last - first + 1 for first, last, _, _ in remembered) == RECORDS * 3 // 4


def test_a_member_that_is_back_keeps_what_it_gets_meanwhile() -> None:
    now = RECORDS * 100
    machine = held()
    machine.release_member(now, "a", 2)
    machine.acquire(now + 1, "a", RECORDS, RECORDS + 1)
    while machine.expire(now + 1, 2):
        pass
    assert machine.held["a"] == 1
    assert machine.acknowledge(now + 1, "a", [(RECORDS, RECORDS, b"\1")])[0] is ErrorCode.NONE
    assert machine.lock_timeouts < RECORDS, "who left is no lock that ran out"


@pytest.mark.parametrize("step", [1, 3, 7])
@pytest.mark.parametrize("alike", [True, False], ids=["one type for all", "a type for each"])
def test_acknowledged_in_steps_as_in_one_go(step: int, alike: bool) -> None:
    now, last = RECORDS * 100, RECORDS // 4 * 4 - 1
    whole, machine = held(1_000_000), held(1_000_000)
    said = [(first, first + 2, b"\1" if alike else b"\1\2\1") for first in range(0, last, 4)]
    assert whole.acknowledge(now, "a", said)[::2] == (ErrorCode.NONE, ())
    error, _, rest = machine.acknowledge(now, "a", said, step)
    while rest:
        error, _, rest = machine.acknowledge(now, "a", rest, step, is_rest=True)
    assert error is ErrorCode.NONE
    for each in (whole, machine):
        for write in each.take_writes():
            each.persisted(write)
    assert standings(machine) == standings(whole)
    assert machine.acknowledged == whole.acknowledged
    assert machine.held == whole.held == {"b": RECORDS // 4}


@pytest.mark.parametrize("step", [1, RECORDS, None])
def test_nothing_is_acknowledged_where_the_last_record_is_somebody_elses(step: int | None) -> None:
    machine = held(1_000_000)
    before = standings(machine)
    said = [(0, 2, b"\1"), (RECORDS - 2, RECORDS - 1, b"\1")]
    assert machine.acknowledge(RECORDS * 100, "a", said, step) == (ErrorCode.INVALID_RECORD_STATE, None, ())
    assert standings(machine) == before
