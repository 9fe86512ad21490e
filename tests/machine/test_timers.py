"""Deadlines by name against a dict that is searched."""

from hypothesis import given
from hypothesis import strategies as st

from ottla.machine.timers import Timers

KEYS = st.integers(0, 4)
MOMENTS = st.integers(0, 12)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("set"), KEYS, MOMENTS),
            st.tuples(st.just("cancel"), KEYS, st.just(0)),
            st.tuples(st.just("pop"), st.just(0), MOMENTS),
        )
    )
)
def test_the_earliest_comes_first_and_what_was_moved_or_cancelled_does_not_come_up(
    steps: list[tuple[str, int, int]],
) -> None:
    timers: Timers[int] = Timers()
    twin: dict[int, int] = {}
    for what, key, moment in steps:
        if what == "set":
            timers.set(key, moment)
            twin[key] = moment
        elif what == "cancel":
            timers.cancel(key)
            twin.pop(key, None)
        else:
            due = min(((at, each) for each, at in twin.items() if at <= moment), default=None)
            assert timers.pop(moment) == (None if due is None else due[1])
            if due is not None:
                del twin[due[1]]
        timers.check()
        assert timers.deadline() == min(twin.values(), default=None)
        assert len(timers) == len(twin)
        assert all(timers.at(each) == at for each, at in twin.items())


def test_a_deadline_that_moves_later_again_and_again_takes_no_room() -> None:
    timers: Timers[str] = Timers()
    for moment in range(1000):
        timers.set("session", moment)
    assert len(timers._heap) == 1


def test_deadlines_that_are_cancelled_take_no_room() -> None:
    timers: Timers[int] = Timers()
    timers.set(-1, 1_000_000)
    for moment in range(10_000):
        timers.set(moment, 500_000 + moment)
        timers.cancel(moment)
    assert len(timers._heap) < 200
    timers.check()
    assert timers.deadline() == 1_000_000


def test_a_deadline_that_moves_earlier_again_and_again_takes_no_room() -> None:
    timers: Timers[str] = Timers()
    for moment in range(10_000, 0, -1):
        timers.set("session", moment)
    assert len(timers._heap) < 200
    timers.check()
    assert timers.pop(1) == "session"
