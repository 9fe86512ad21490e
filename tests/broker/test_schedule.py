"""Timers of a node: none can be forgotten; their order; what a failure, a standstill and a stop do to them."""

import ast
from collections.abc import Callable
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

import ottla.broker
from ottla.broker.schedule import AT_ONCE, REST_MS, Backlog, KeyedTimers, Limits, Reckoning, Schedule, Timed, Timer
from tests.harness.node_stage import NodeStage

BROKER = Path(ottla.broker.__file__).parent
PARTS = (Timed.UPKEEP, Timed.METADATA, Timed.SHARE)
"""Those whose timers the twin makes, not in their order."""


def raising(what: str, error: Exception) -> None:
    raise error


class Fired(list[tuple[str, int]]):
    """What fired when. A timer of this list: `fired.of("name")`."""

    def of(self, name: str) -> Callable[[int], None]:
        return lambda now: self.append((name, now))


def test_no_part_of_a_node_has_a_deadline_of_its_own() -> None:
    """A deadline that is computed on request is one that somebody forgets to report."""
    own = [
        f"{path.relative_to(BROKER)}: {node.name}"
        for path in sorted(BROKER.rglob("*.py"))
        if path.name not in ("node.py", "schedule.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name in ("deadline", "next_deadline", "tick")
    ]
    assert not own


def test_a_timer_that_nobody_reports_is_the_deadline_of_the_node(tmp_path: Path) -> None:
    """The fault that used to be possible: a part is due earlier than before, and says so nowhere."""
    stage, fired = NodeStage(tmp_path), Fired()
    stage.run()
    before = stage.node.deadline()
    assert before is not None
    due = stage.now + 5
    assert due < before
    Timer(stage.node.schedule, Timed.UPKEEP, fired.of("late")).set(due)
    assert stage.node.deadline() == due
    stage.run(5)
    assert fired == [("late", due)]


def test_timers_fire_by_part_and_then_in_the_order_in_which_they_were_made() -> None:
    schedule, fired = Schedule(raising), Fired()
    made = [
        Timer(schedule, part, fired.of(f"{part.name} {number}"))
        for number, part in enumerate((Timed.UPKEEP, Timed.COMMITS, Timed.UPKEEP, Timed.SLICES))
    ]
    for at, timer in zip((1, 4, 2, 3), made, strict=True):
        timer.set(at)
    schedule.tick(3)
    assert fired == [("SLICES 3", 3), ("UPKEEP 0", 3), ("UPKEEP 2", 3)]
    assert schedule.deadline() == 4


def test_the_part_whose_timer_took_longest_is_known_after_a_pass() -> None:
    clock_us = 0

    def taking(micros: int) -> Callable[[int], None]:
        def work(now: int) -> None:
            nonlocal clock_us
            clock_us += micros

        return work

    schedule = Schedule(raising, lambda: clock_us)
    for part, micros in ((Timed.UPKEEP, 10), (Timed.GROUPS, 30), (Timed.METADATA, 20)):
        Timer(schedule, part, taking(micros)).set(1)
    Timer(schedule, Timed.SHARE, taking(10)).set(2)
    assert schedule.slowest is None
    schedule.tick(1)
    assert schedule.slowest is Timed.GROUPS
    schedule.tick(2)
    assert schedule.slowest is Timed.SHARE
    schedule.tick(3)
    assert schedule.slowest is None, "nothing fired"


def test_what_becomes_due_during_a_pass_has_its_turn_in_it_if_that_is_still_to_come() -> None:
    schedule, fired = Schedule(raising), Fired()
    earlier = Timer(schedule, Timed.COMMITS, fired.of("earlier"))
    later = Timer(schedule, Timed.UPKEEP, fired.of("later"))
    backlog = Backlog[str](schedule, Timed.SLICES, lambda now: begin(now))

    def begin(now: int) -> None:
        fired.append((backlog.popleft(), now))
        earlier.set(now)
        later.set(now)

    backlog.append("first")
    backlog.append("second")
    schedule.tick(7)
    assert fired == [("first", 7), ("later", 7)]
    assert schedule.deadline() == AT_ONCE
    schedule.tick(8)
    assert fired[2:] == [("earlier", 8), ("second", 8), ("later", 8)]


def test_a_timer_that_was_moved_or_cancelled_in_the_same_pass_does_not_fire() -> None:
    schedule, fired = Schedule(raising), Fired()
    moved, cancelled = (Timer(schedule, Timed.UPKEEP, fired.of(name)) for name in ("moved", "cancelled"))

    def change_both(now: int) -> None:
        moved.set(now + 9)
        cancelled.cancel()

    first = Timer(schedule, Timed.COMMITS, change_both)
    for timer in (first, moved, cancelled):
        timer.set(5)
    schedule.tick(5)
    assert fired == []
    assert schedule.deadline() == 14


def test_after_a_standstill_each_timer_fires_once() -> None:
    schedule, fired = Schedule(raising), Fired()

    def every_second(now: int) -> None:
        fired.append(("again", now))
        timer.set(now + 1_000)

    timer = Timer(schedule, Timed.UPKEEP, every_second)
    timer.set(1_000)
    schedule.tick(60_500)
    assert fired == [("again", 60_500)]
    assert schedule.deadline() == 61_500


def test_nothing_fires_once_the_node_has_stopped() -> None:
    schedule, fired = Schedule(raising), Fired()
    Timer(schedule, Timed.UPKEEP, fired.of("late")).set(5)
    schedule.stop()
    schedule.tick(9)
    assert fired == []
    assert schedule.deadline() is None


def test_a_timer_whose_work_fails_rests_alone_and_is_tried_again() -> None:
    faults: list[str] = []
    fired = Fired()
    schedule = Schedule(lambda what, error: faults.append(f"{what}: {error}"))

    def fail(now: int) -> None:
        fired.append(("fails", now))
        raise ValueError("planted")

    Timer(schedule, Timed.METADATA, fail).set(5)
    Timer(schedule, Timed.METADATA, fired.of("works")).set(5)
    schedule.tick(5)
    assert fired == [("fails", 5), ("works", 5)]
    assert faults == ["timed work of changes of the metadata failed and rests for 60 s: planted"]
    assert schedule.deadline() == 5 + REST_MS
    schedule.tick(6)
    assert len(fired) == 2
    schedule.tick(5 + REST_MS)
    assert len(faults) == 2


def test_what_comes_along_fires_with_whatever_is_due_first() -> None:
    schedule, fired = Schedule(raising), Fired()
    look = Timer(schedule, Timed.UPKEEP, fired.of("look"), comes_along=True)
    other = Timer(schedule, Timed.REQUESTS, fired.of("other"))
    look.set(100)
    other.set(10)
    schedule.tick(10)
    assert fired == [("other", 10), ("look", 10)]
    assert schedule.deadline() is None
    look.set(100)
    assert schedule.deadline() == 100
    look.cancel()
    schedule.tick(20)
    assert len(fired) == 2


def test_a_deadline_that_follows_from_state_is_asked_for_after_each_touch() -> None:
    schedule, fired = Schedule(raising), Fired()
    asked: list[int] = []
    state: list[int] = [30]

    def due() -> int:
        asked.append(state[0])
        return state[0]

    reckoning = Reckoning(schedule, Timed.REPLICATION, fired.of("fetch"), due)
    reckoning.touched()
    assert [schedule.deadline() for _ in range(3)] == [30] * 3
    state[0] = 20
    reckoning.touched()
    assert schedule.deadline() == 20
    assert asked == [30, 20]
    schedule.tick(10)
    assert fired == []
    schedule.tick(20)
    assert fired == [("fetch", 20)]


def test_limits_of_what_has_ended_take_no_room() -> None:
    schedule = Schedule(raising)
    living: dict[int, None] = {}
    limits = Limits[int](schedule, Timed.REQUESTS, lambda now: None, living)
    for number in range(10_000):
        living[number] = None
        limits.add(number, 30_000 + number)
        living.pop(number - 3, None)
    assert len(limits._heap) <= 1024
    assert schedule.deadline() == 30_000 + 10_000 - 3
    assert list(limits) == [(number, 30_000 + number) for number in sorted(living)]


def test_a_host_need_not_ask_before_something_is_due_earlier() -> None:
    schedule = Schedule(raising)
    assert schedule.earliest > 50
    timer = Timer(schedule, Timed.UPKEEP, lambda now: None)
    timer.set(50)
    assert schedule.earliest == 50
    timer.set(60)
    assert schedule.deadline() == schedule.earliest == 60
    timer.set(40)
    assert schedule.earliest == 40


@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from(("set", "key")), st.integers(0, 5), st.integers(1, 20)),
            st.tuples(st.sampled_from(("cancel", "cancel key")), st.integers(0, 5), st.just(0)),
            st.tuples(st.just("tick"), st.just(0), st.integers(0, 6)),
        ),
        max_size=40,
    )
)
def test_the_head_of_the_heap_is_the_earliest_of_all(steps: list[tuple[str, int, int]]) -> None:
    """Against a dict that is searched: every step, the deadline and what fires."""
    schedule, fired = Schedule(raising), Fired()
    timers = [Timer(schedule, PARTS[number % 3], fired.of(f"timer {number}")) for number in range(6)]
    keyed = KeyedTimers[int](schedule, Timed.PEERS, lambda now: take(now))

    def take(now: int) -> None:
        fired.extend((f"key {key}", now) for key in keyed.pop_all(now))

    twin: dict[str, int] = {}
    now = 0
    for what, number, moment in steps:
        match what:
            case "set":
                timers[number].set(now + moment)
                twin[f"timer {number}"] = now + moment
            case "key":
                keyed.set(number, now + moment)
                twin[f"key {number}"] = now + moment
            case "cancel":
                timers[number].cancel()
                twin.pop(f"timer {number}", None)
            case "cancel key":
                keyed.cancel(number)
                twin.pop(f"key {number}", None)
            case _:
                now += moment
                fired.clear()
                schedule.tick(now)
                due = {name for name, at in twin.items() if at <= now}
                assert sorted(name for name, _ in fired) == sorted(due)
                twin = {name: at for name, at in twin.items() if at > now}
        schedule.check()
        deadline = schedule.deadline()
        assert deadline == min(twin.values(), default=None)
        assert deadline is None or schedule.earliest == deadline
