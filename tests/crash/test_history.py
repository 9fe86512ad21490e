"""Each fault that the crash loops look for is found in a history written by hand, and nothing where there is none."""

from collections.abc import Callable

import pytest

from tools.history import Accepted, Commit, Fate, Handed, History, Look, Record, Run, check

LOG, OTHER = ("log", 0), ("log", 1)
LEDGER, SECOND = ("ledger", 0), ("ledger", 1)
JOBS = ("jobs", 0)


def sound() -> History:
    """Two writers of a log, three transactions of which one is aborted and one nobody knows of, a group whose members
    take turns, a share group; nothing is wrong."""
    history = History(groups={"g": "log"}, shared={"jobs"})
    for number in range(4):
        for writer in ("a", "b"):
            history.sent[LOG][writer, number] = Fate.KEPT
    history.sent[LOG]["a", 4] = Fate.UNKNOWN
    order = [("a", 0), ("b", 0), ("a", 1), ("a", 2), ("b", 1), ("b", 2), ("a", 3), ("b", 3)]
    history.logs[LOG] = [Record(offset, label) for offset, label in enumerate(order)]
    history.told[LOG] = {label: offset for offset, label in enumerate(order)}
    for place in (LEDGER, SECOND):
        history.sent[place] = {("t", 0): Fate.KEPT, ("t", 1): Fate.DROPPED, ("t", 2): Fate.UNKNOWN}
        history.logs[place] = [Record(0, ("t", 0)), Record(4, ("t", 2))]  # markers and the aborted one are between
    history.runs = [
        Run("tail", LOG, records=history.logs[LOG][:6]),
        Run("first", LOG, "g", began=1.0, records=history.logs[LOG][:5]),
        Run("second", LOG, "g", began=5.0, records=history.logs[LOG][4:]),
        Run("tail", LEDGER, records=list(history.logs[LEDGER])),
    ]
    history.commits = [
        Commit("g", LOG, 3, 2.0, 2.1),
        Commit("g", LOG, 4, 2.2, 2.3),
        Commit("g", LOG, 5, 3.0, None),  # took place or not: who came second began before it
        Commit("g", LOG, 8, 6.0, 6.1),
    ]
    history.looks = [Look("g", LOG, 3, 2.15, 2.2), Look("g", LOG, 4, 3.1, 3.2), Look("g", LOG, 8, 6.05, 6.2)]
    history.sent[JOBS] = {("jobs", number): Fate.KEPT for number in range(3)}
    history.logs[JOBS] = [Record(number, ("jobs", number)) for number in range(3)]
    history.handed = [Handed(JOBS, 0, 1.0), Handed(JOBS, 1, 1.0), Handed(JOBS, 1, 4.0), Handed(JOBS, 2, 1.0)]
    history.accepted = [
        Accepted(JOBS, 0, 2.0),
        Accepted(JOBS, 1, None),
        Accepted(JOBS, 1, 5.0),
        Accepted(JOBS, 2, None),
    ]
    return history


def log_of(*numbers: int) -> list[Record]:
    """Records of writer "a"."""
    return [Record(offset, ("a", number)) for offset, number in enumerate(numbers)]


def lost(history: History) -> None:
    del history.logs[LOG][-1]


def lost_transaction(history: History) -> None:
    del history.logs[LEDGER][0], history.logs[SECOND][0]


def twice(history: History) -> None:
    history.logs[LOG].append(Record(8, ("b", 3)))


def reordered(history: History) -> None:
    history.sent[OTHER] = {("a", number): Fate.KEPT for number in range(3)}
    history.logs[OTHER] = log_of(0, 2, 1)
    history.groups.clear()


def invented(history: History) -> None:
    history.logs[LOG].append(Record(8, ("c", 0)))


def moved(history: History) -> None:
    history.told[LOG]["b", 3] = 9


def dirty(history: History) -> None:
    for place in (LEDGER, SECOND):
        history.logs[place].insert(1, Record(2, ("t", 1)))


def dirty_for_a_while(history: History) -> None:
    history.runs[3].records.insert(1, Record(2, ("t", 1)))


def torn(history: History) -> None:
    history.logs[SECOND].pop()


def shown_and_gone(history: History) -> None:
    history.runs[0].records.append(Record(6, ("b", 3)))


def read_back(history: History) -> None:
    history.runs[0].records.append(history.logs[LOG][5])


def read_over(history: History) -> None:
    del history.runs[0].records[3]


def read_late(history: History) -> None:
    del history.runs[0].records[0]


def never_read(history: History) -> None:
    history.runs[2].records.pop()


def committed_back(history: History) -> None:
    history.looks.append(Look("g", LOG, 3, 2.35, 2.4))


def began_back(history: History) -> None:
    history.runs[2].records.insert(0, history.logs[LOG][3])


def seen_back(history: History) -> None:
    history.looks += [Look("g", LOG, 5, 3.3, 3.4), Look("g", LOG, 4, 3.5, 3.6)]


def forgotten(history: History) -> None:
    history.looks.append(Look("g", LOG, -1, 7.0, 7.1))


def committed_by_nobody(history: History) -> None:
    history.looks.append(Look("g", LOG, 7, 3.3, 3.4))


def given_again(history: History) -> None:
    history.handed.append(Handed(JOBS, 0, 2.0))


def accepted_twice(history: History) -> None:
    history.accepted.append(Accepted(JOBS, 0, 2.5))


def given_to_nobody(history: History) -> None:
    history.accepted.pop()


PLANTED: dict[Callable[[History], None], str] = {
    lost: "log-0: 1 acknowledged and lost, the first is ('b', 3)",
    lost_transaction: "ledger-1: 1 acknowledged and lost, the first is ('t', 0)",
    twice: "log-0: 1 there twice, the first is ('b', 3)",
    reordered: "log-1: 1 behind a later one of its writer, the first is ('a', 1)",
    invented: "log-0: 1 never sent, the first is ('c', 0)",
    moved: "log-0: 1 elsewhere than was acknowledged, the first is Record(offset=7, label=('b', 3)), not 9",
    dirty: "ledger-0: 1 of an aborted transaction, the first is ('t', 1)",
    dirty_for_a_while: "tail at ledger-0: 1 read, of an aborted transaction",
    torn: "ledger: 1 in one partition and not in the other, the first is ('t', 2)",
    shown_and_gone: "tail at log-0: 1 read, and not there in the end, the first is Record(offset=6, label=('b', 3))",
    read_back: "tail at log-0: 1 read after a later offset, the first is (5, 5)",
    read_over: "tail at log-0: 1 with records between them that were left out, the first is (2, 4)",
    read_late: "tail at log-0: the first record read is at 1, the log has one at 0",
    never_read: "g at log-0: 1 that no member has read, the first is Record(offset=7, label=('b', 3))",
    committed_back: "g at log-0: the committed offset went back from 4 to 3",
    began_back: "g at log-0: the committed offset went back from 4 to 3",
    seen_back: "g at log-0: the committed offset went back from 5 to 4",
    forgotten: "g at log-0: the committed offset went back from 8 to -1",
    committed_by_nobody: "g at log-0: 7 is committed, and members committed no more than 5",
    given_again: "share group: 1 accepted, and given out again, the first is (('jobs', 0), 0)",
    accepted_twice: "share group: 1 accepted twice, the first is (('jobs', 0), 0)",
    given_to_nobody: "share group at jobs-0: 1 that nobody has accepted, the first is Record(offset=2",
}


def test_nothing_is_found_where_all_is_well() -> None:
    assert check(sound()) == []


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found(plant: Callable[[History], None]) -> None:
    history = sound()
    plant(history)
    assert any(each.startswith(PLANTED[plant]) for each in check(history)), check(history)
