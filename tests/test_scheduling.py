"""The scheduler of ./test hands out the same tests in the same order as the one of pytest-xdist that it replaces."""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("xdist")

from xdist.scheduler import LoadGroupScheduling

from tests.harness.scheduling import Scheduling

TESTS = [f"tests/a.py::test_{number}@{name}" for name in ("one", "two", "three") for number in range(7)]
TESTS += [f"tests/b.py::test_{number}" for number in range(40)]


class Worker:
    """Runs what it is given, but the last test, until it is told that no more will come."""

    shutting_down = False

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.given: list[int] = []
        self.begun = 0

    def send_runtest_some(self, indices: list[int]) -> None:
        self.given += indices

    def shutdown(self) -> None:
        self.shutting_down = True

    def next_done(self) -> int | None:
        if self.begun == len(self.given) or (self.begun == len(self.given) - 1 and not self.shutting_down):
            return None
        self.begun += 1
        return self.given[self.begun - 1]


def handed_out(kind: type[LoadGroupScheduling], dies_after: int) -> list[list[int]]:
    """What three workers are given. One of them dies after so many steps."""
    config: Any = SimpleNamespace(getvalue=lambda name: ["popen"] * 3, option=SimpleNamespace(loadscopereorder=False))
    workers = [Worker(f"gw{number}") for number in range(3)]
    scheduling = kind(config)
    for worker in workers:
        scheduling.add_node(worker)  # type: ignore[arg-type]
        scheduling.add_node_collection(worker, TESTS)  # type: ignore[arg-type]
    scheduling.schedule()
    running = list(workers)
    for step in range(10 * len(TESTS)):
        if step == dies_after:
            dead = running.pop()
            crashed = scheduling.remove_node(dead)  # type: ignore[arg-type]
            assert crashed == TESTS[dead.given[dead.begun]]
        worker = running[step * 7 % len(running)]
        done = worker.next_done()
        if done is not None:
            scheduling.mark_test_complete(worker, done)  # type: ignore[arg-type]
    assert scheduling.tests_finished
    assert {index for worker in workers for index in worker.given} == set(range(len(TESTS)))
    return [worker.given for worker in workers]


@pytest.mark.parametrize("dies_after", [0, 5, 10_000])
def test_tests_are_handed_out_as_before(dies_after: int) -> None:
    assert handed_out(Scheduling, dies_after) == handed_out(LoadGroupScheduling, dies_after)
