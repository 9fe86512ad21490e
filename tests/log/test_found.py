"""What the opening of a log reports as missing or damaged."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from ottla.log.answers import Isolation
from ottla.log.checkpoints import CheckpointUnreadableError
from ottla.log.config import LogConfig
from ottla.log.left import LEFT_LOGS_FILE, Left, take_left, write_left
from ottla.log.log import Log
from ottla.log.recovery.found import What
from ottla.protocol.records.batch import iter_batches
from ottla.sim.kernel.disk import Disk
from tests.harness.log.support import DIRECTORY, NOW, TOPIC_ID, batch, disk, maintain, open_log, put, small, values

KILLED: dict[str, Any] = {"clean_shutdown": False}
POWER: dict[str, Any] = {"clean_shutdown": False, "same_boot": False}
EPOCHS = f"{DIRECTORY}/leader-epoch-checkpoint"
GAPS = f"{DIRECTORY}/gaps-below"
COMPACTED = small(cleanup_policy=frozenset({"compact"}))


def filled(files: Disk, config: LogConfig | None = None, count: int = 60) -> Log:
    """A log with a batch at each offset and an epoch for ten of them each."""
    log = open_log(files, config or small())
    for number in range(count):
        put(log, batch(b"%d" % number + b"v" * 20, key=b"%d" % number), epoch=2 + number // 10)
    return log


def left(files: Disk, config: LogConfig | None = None) -> Left:
    """How a clean stop leaves this log."""
    how = filled(files, config).close(NOW)
    assert how is not None
    return how


def again(files: Disk, config: LogConfig | None = None, **how: Any) -> Log:
    files.kill()
    return open_log(files, config or small(), **how)


def found(log: Log) -> list[tuple[What, int, int]]:
    return [(finding.what, finding.first, finding.end) for finding in log.found.findings]


def segments(files: Disk) -> list[str]:
    return [name.removesuffix(".log") for name in files.listdir(DIRECTORY) if name.endswith(".log")]


def remove(files: Disk, *names: str) -> None:
    for name in files.listdir(DIRECTORY):
        if name.partition(".")[0] in names:
            files.unlink(f"{DIRECTORY}/{name}")


def flip(files: Disk, path: str, at: int, bit: int = 0) -> None:
    """Flip one bit, on the disk and in the page cache."""
    file = files._file(path)
    file.content[at] ^= 1 << bit
    file.kept[:] = file.content


def starts(files: Disk, path: str) -> list[int]:
    return [position for _, position in iter_batches(memoryview(files.read_bytes(path)))]


# ---- the end -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [KILLED, POWER], ids=["killed", "power cut"])
def test_a_batch_that_claims_too_high_offsets_does_not_end_the_log(how: dict[str, Any]) -> None:
    """A bit of its base offset has flipped, which no checksum covers; what follows contradicts it, or is torn."""
    whole = disk()
    filled(whole, LogConfig(), 20)
    path = f"{DIRECTORY}/{0:020d}.log"
    places = starts(whole, path)
    contradicted = whole.clone(random.Random(1))
    flip(contradicted, path, places[-2] + 5)
    log = again(contradicted, LogConfig(), **how)
    assert log.log_end_offset == 18
    assert [each.what for each in log.found.findings] == [What.CUT]
    torn = whole.clone(random.Random(2))
    flip(torn, path, places[-2] + 5)
    torn.open(path).truncate(places[-1] + 70)
    log = again(torn, LogConfig(), **how)
    assert log.log_end_offset == 18
    last = whole.clone(random.Random(3))
    flip(last, path, places[-1] + 5)
    log = again(last, LogConfig(), **how)
    assert log.found.damaged_from == 19
    compacted = LogConfig(cleanup_policy=frozenset({"compact"}))
    unknown = last.clone(random.Random(4))
    unknown.put(GAPS, None)
    assert again(unknown, compacted, **how).found.damaged_from is None, "compaction may have made the gap"
    log = again(last, compacted, high_watermark=1 << 40, **how)
    assert log.found.damaged_from == 19, "the log lacks its end, so nothing is lost by doubt"


def test_a_log_that_is_cut_below_a_batch_that_claims_too_high_offsets_lacks_that_batch() -> None:
    """Compaction may have made the gap before the last batch, so the start trusts it. The leader sets the cut."""
    files = disk()
    filled(files, COMPACTED, 20)
    last = f"{DIRECTORY}/{segments(files)[-1]}.log"
    flip(files, last, starts(files, last)[-1] + 5)
    files.put(GAPS, None)
    log = again(files, COMPACTED, **KILLED)
    assert log.found.is_complete
    assert log.truncate_to(20, now=NOW)
    assert log.log_end_offset == 19, "the next fetch begins with what is missing"
    log.check()
    assert len(values(log)) == 19


@pytest.mark.parametrize("restarts", [False, True])
def test_what_is_left_of_a_batch_goes_with_the_cut_that_mends_a_closed_segment(restarts: bool) -> None:
    """Otherwise its records are copied behind that rest, where no reader finds them."""
    files = disk()
    log = filled(files)
    path = f"{DIRECTORY}/{segments(files)[0]}.log"
    at = starts(files, path)[2]
    files.settle_everything()
    files.overwrite(path, files.content(path)[: at + 30])
    if restarts:
        log = again(files, **KILLED)
        assert found(log)[0][1] == 2
    assert log.truncate_to(2, now=NOW)
    assert files.size(path) == at
    assert put(log, batch(b"again")) == 2
    assert values(log)[2] == b"again"
    log.check()


@pytest.mark.parametrize("how", [KILLED, POWER], ids=["killed", "power cut"])
def test_a_first_batch_that_claims_too_high_offsets_does_not_end_the_log(how: dict[str, Any]) -> None:
    """It may be the only one, and no other contradicts it. A segment is named after its first offset."""
    alone = disk()
    filled(alone, LogConfig(), 1)
    path = f"{DIRECTORY}/{0:020d}.log"
    flip(alone, path, 5)
    assert again(alone, LogConfig(), **how).found.damaged_from == 0
    followed = disk()
    filled(followed, LogConfig(), 20)
    flip(followed, path, 5)
    log = again(followed, LogConfig(), **how)
    assert log.log_end_offset == 0
    assert found(log) == [(What.CUT, 0, -1)]


@pytest.mark.parametrize("how", [KILLED, POWER], ids=["killed", "power cut"])
def test_a_part_of_one_batch_is_told_from_batches_that_are_lost(how: dict[str, Any]) -> None:
    whole = disk()
    filled(whole, LogConfig(), 20)
    path = f"{DIRECTORY}/{0:020d}.log"
    places = starts(whole, path)
    torn = whole.clone(random.Random(1))
    torn.open(path).truncate(places[-1] + 70)
    log = again(torn, LogConfig(), **how)
    assert found(log) == [(What.TORN, 19, -1)]
    assert not log.found.is_complete
    assert log.found.findings[0].size == 70
    damaged = whole.clone(random.Random(2))
    flip(damaged, path, places[-2] + 65)
    log = again(damaged, LogConfig(), **how)
    assert found(log) == [(What.CUT, 18, -1)]


def test_segments_behind_a_cut_are_reported() -> None:
    files = disk()
    log = filled(files)
    base = log.bases[-3]
    flip(files, f"{log.segments[-3].path}.log", 65)
    log = again(files, **POWER)
    assert log.log_end_offset == base
    assert [what for what, _, _ in found(log)] == [What.CUT, What.CUT]
    assert found(log)[0][1] == base


@pytest.mark.parametrize("how", [{}, KILLED, POWER], ids=["clean", "killed", "power cut"])
@pytest.mark.parametrize("known", ["high_watermark", "recovery_point"])
def test_a_log_that_ends_below_its_checkpoints_is_short(how: dict[str, Any], known: str) -> None:
    files = disk()
    filled(files, count=10)
    log = again(files, None, **how, **{known: 13})
    assert found(log) == [(What.SHORT, 10, 13)]
    assert found(again(files, None, **how, **{known: 10})) == []


@pytest.mark.parametrize("how", [{}, KILLED, POWER], ids=["clean", "killed", "power cut"])
@pytest.mark.parametrize("directory", [True, False], ids=["empty", "gone"])
def test_a_log_without_segments_has_lost_all(how: dict[str, Any], directory: bool) -> None:
    files = disk()
    if directory:
        files.makedirs(DIRECTORY)
    log = again(files, **how, high_watermark=7)
    assert found(log) == [(What.ALL, 0, 7)]
    assert found(again(files, **how)) == []
    assert found(again(files, **how, log_start_offset=7, high_watermark=7, recovery_point=7)) == []


# ---- head and middle -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [{}, KILLED, POWER], ids=["clean", "killed", "power cut"])
def test_a_missing_segment_in_the_middle_is_found(how: dict[str, Any]) -> None:
    files = disk()
    bases = filled(files).bases
    remove(files, segments(files)[2])
    log = again(files, recovery_point=60, **how)
    assert found(log) == [(What.MIDDLE, bases[2], bases[3])]


@pytest.mark.parametrize("how", [{}, KILLED, POWER], ids=["clean", "killed", "power cut"])
def test_a_missing_head_is_found_unless_the_log_start_explains_it(how: dict[str, Any]) -> None:
    files = disk()
    bases = filled(files, COMPACTED).bases
    remove(files, *segments(files)[:2])
    known = {"recovery_point": 60, "high_watermark": 60}
    assert found(again(files, COMPACTED, **known, **how)) == [(What.HEAD, 0, bases[2])]
    assert found(again(files, small(), **known, **how)) == [(What.HEAD, 0, bases[2])]
    assert found(again(files, small(), **known, start_known=False, **how)) == [(What.HEAD, 0, bases[2])]
    assert found(again(files, COMPACTED, **known, log_start_offset=bases[2], **how)) == []
    files.unlink(EPOCHS)
    assert found(again(files, COMPACTED, **known, start_known=False, **how)) == []
    assert found(again(files, small(), **known, **how)) == []


def test_segments_that_retention_deletes_are_told_from_lost_ones_at_each_step() -> None:
    """A kill at any step of a deletion leaves epochs that begin no earlier than the log."""
    files = disk()
    log = filled(files, small(retention_ms=1000))
    first, kept = log.bases[0], log.bases[-1]
    steps = 0
    for file in log.maintaining(NOW + 10**9):
        opened = open_log(files.clone(random.Random(1)), small(), recovery_point=60, high_watermark=60, **KILLED)
        assert found(opened) == []
        file.sync()
        steps += 1
    assert first < kept <= log.log_start_offset
    assert steps > 3


def test_damage_at_the_end_of_a_closed_segment_is_found() -> None:
    whole = disk()
    log = filled(whole)
    path, following = f"{log.segments[1].path}.log", log.bases[2]
    last = starts(whole, path)[-1]
    for at, bit in ((3, 0), (7, 5), (8, 6), (16, 2)):
        files = whole.clone(random.Random(1))
        flip(files, path, last + at, bit)
        opened = again(files, recovery_point=60, **KILLED)
        assert [what for what, _, _ in found(opened)] == [What.DAMAGED], (at, bit)
        assert found(opened)[0][2] == following


def test_compaction_and_retention_leave_nothing_to_report() -> None:
    from ottla.log.compaction.compaction import Compaction

    files = disk()
    log = open_log(files, COMPACTED)
    for number in range(90):
        put(log, batch(b"v" * 20, key=b"%d" % (number % 4)), epoch=number // 25)
    for file in Compaction(log, NOW):
        if file is not None:
            file.sync()
    assert len(values(log)) < 60
    log.flush()
    assert found(again(files, COMPACTED, recovery_point=90, high_watermark=90, **KILLED)) == []
    files = disk()
    log = filled(files, small(retention_ms=1000))
    log.roll(NOW)
    maintain(log, NOW + 10**9)
    assert log.log_start_offset == 60
    log.flush()
    assert found(again(files, recovery_point=60, high_watermark=60, **KILLED)) == []


# ---- since a clean stop --------------------------------------------------------------------------------------------


def cut(files: Disk) -> None:
    path = f"{DIRECTORY}/{segments(files)[-1]}.log"
    files.open(path).truncate(starts(files, path)[-1])


def removed_last(files: Disk) -> None:
    remove(files, segments(files)[-1])


def removed_first(files: Disk) -> None:
    remove(files, segments(files)[0])


def removed_middle(files: Disk) -> None:
    remove(files, segments(files)[2])


def removed_all(files: Disk) -> None:
    remove(files, *segments(files))


def flipped(files: Disk) -> None:
    path = f"{DIRECTORY}/{segments(files)[-1]}.log"
    flip(files, path, starts(files, path)[-1] + 70)


def flipped_offset(files: Disk) -> None:
    path = f"{DIRECTORY}/{segments(files)[-1]}.log"
    flip(files, path, starts(files, path)[-1] + 5)


def cut_closed(files: Disk) -> None:
    path = f"{DIRECTORY}/{segments(files)[1]}.log"
    files.open(path).truncate(starts(files, path)[-1])


@pytest.mark.parametrize(
    ("harm", "expected"),
    [
        (cut, What.SHORT),
        (removed_last, What.SHORT),
        (removed_first, What.HEAD),
        (removed_middle, What.MIDDLE),
        (removed_all, What.ALL),
        (flipped, What.DAMAGED),
        (flipped_offset, What.CHANGED),
        (cut_closed, What.MIDDLE),
    ],
)
def test_what_happened_to_the_files_since_a_clean_stop_is_found(harm: Callable[[Disk], None], expected: What) -> None:
    files = disk()
    how = left(files)
    assert found(again(files.clone(random.Random(1)), left=how)) == []
    harm(files)
    assert expected in [what for what, _, _ in found(again(files, left=how, recovery_point=60, high_watermark=60))]


def test_an_older_copy_of_the_files_is_found() -> None:
    files = disk()
    older = filled(files, count=40)
    older.close(NOW)
    copy = files.clone(random.Random(1))
    newer = again(files)
    for _ in range(7):
        put(newer, batch(b"more"), epoch=6)
    how = newer.close(NOW)
    assert found(again(copy, left=how))[0] == (What.SHORT, 40, 47)


def test_a_clean_stop_that_does_not_say_how_it_left_its_logs_is_taken_as_it_is() -> None:
    files = disk()
    left(files)
    cut(files)
    assert found(again(files)) == []


def test_how_logs_were_left_is_read_back_once(tmp_path: Any) -> None:
    files = disk()
    how = left(files)
    more = how._replace(topic_id=bytes(16), start=3)
    write_left(files, "/data", 17, [("t", 0, how), ("u.v-1", 12, more)])
    octets = files.read_bytes(f"/data/{LEFT_LOGS_FILE}")
    assert how.topic_id == TOPIC_ID
    assert take_left(files, "/data", 17) == {("t", 0): how, ("u.v-1", 12): more}
    assert take_left(files, "/data", 17) == {}
    write_left(files, "/data", 17, [("t", 0, how)])
    assert take_left(files, "/data", 18) == {}
    write_left(files, "/data", 17, [("t", 0, how)])
    assert take_left(files, "/data", None) == {}
    for at in range(len(octets)):
        bad = bytearray(octets)
        bad[at] ^= 1
        files.write_atomically(f"/data/{LEFT_LOGS_FILE}", bytes(bad))
        with pytest.raises(CheckpointUnreadableError):
            take_left(files, "/data", 17)


# ---- leader epochs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [{}, KILLED, POWER], ids=["clean", "killed", "power cut"])
def test_a_flipped_bit_in_the_epoch_checkpoint_changes_no_epoch(how: dict[str, Any]) -> None:
    whole = disk()
    expected = filled(whole, count=45).epochs.entries
    octets = whole.read_bytes(EPOCHS)
    for at in range(len(octets)):
        for bit in (0, 1, 3):
            files = whole.clone(random.Random(1))
            flip(files, EPOCHS, at, bit)
            log = again(files, recovery_point=45, high_watermark=45, **how)
            assert log.epochs.entries == expected, (at, bit)
            assert found(log) == []


@pytest.mark.parametrize("how", [{}, KILLED, POWER], ids=["clean", "killed", "power cut"])
@pytest.mark.parametrize("checkpoint", ["as it was", "lost"])
def test_a_flipped_bit_in_the_epoch_of_a_batch_changes_no_epoch(how: dict[str, Any], checkpoint: str) -> None:
    config = LogConfig(index_interval_bytes=100)
    whole = disk()
    expected = filled(whole, config, 45).epochs.entries
    path = f"{DIRECTORY}/{0:020d}.log"
    places = starts(whole, path)
    for number in (3, 14, 27, 44):
        if number == 44 and checkpoint == "lost":
            continue  # nothing is left to hold the newest batch against
        for at, bit in ((12, 4), (15, 5), (15, 0)):
            files = whole.clone(random.Random(1))
            flip(files, path, places[number] + at, bit)
            if checkpoint == "lost":
                files.unlink(EPOCHS)
            log = again(files, config, recovery_point=45, high_watermark=45, **how)
            assert log.epochs.entries == expected, (number, at, bit)
            assert len(values(log, isolation=Isolation.HIGH_WATERMARK)) == 45
