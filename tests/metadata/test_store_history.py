"""What a node can tell of a metadata store that was restored from a backup."""

from ottla.metadata.history import ENTRIES_KEPT, Entry, HistoryRecord, lost_commits

A, B = Entry(50, "a", 49), Entry(90, "b", 89)
STARTS = [(50, "a"), (90, "b")]


def test_a_store_that_goes_on_has_lost_nothing() -> None:
    assert lost_commits(107, STARTS, [A, B], 107) == 0
    assert lost_commits(107, STARTS, [A, B, Entry(120, "c", 119)], 130) == 0


def test_what_a_store_lacks_is_counted() -> None:
    assert lost_commits(107, STARTS, [A, B], 100) == 7
    assert lost_commits(107, STARTS, [A], 70) == 37


def test_a_new_history_does_not_hide_the_lost_one() -> None:
    again = Entry(101, "c", 100)
    assert lost_commits(107, STARTS, [A, B, again], 101) == 7
    assert lost_commits(107, STARTS, [A, B, again], 5_000) == 7
    assert lost_commits(107, STARTS, [A, Entry(71, "c", 70)], 5_000) == 37


def test_numbers_that_a_new_history_leaves_out_are_lost_ones() -> None:
    assert lost_commits(107, STARTS, [A, B, Entry(131, "c", 100)], 5_000) == 7


def test_a_node_that_has_seen_nothing_misses_nothing() -> None:
    assert lost_commits(0, [], [A, B], 107) == 0
    assert lost_commits(0, [], [], 0) == 0


def test_a_node_that_was_away_for_very_long_misses_nothing() -> None:
    record = HistoryRecord("start", version=100)
    for number in range(ENTRIES_KEPT + 10):
        record = HistoryRecord.decode(record.followed_by(f"start-{number}").encode())
        record = HistoryRecord(record.newest, record.before, record.earlier, 200 + number)
    assert len(record.earlier) == ENTRIES_KEPT
    assert lost_commits(107, STARTS, record.entries, 1_000) == 0


def test_a_history_of_other_starts_lacks_what_was_seen() -> None:
    assert lost_commits(107, STARTS, [Entry(3, "x", 2), Entry(60, "y", 59)], 5_000) == 105
