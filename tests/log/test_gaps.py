"""A gap between batches is damage, unless compaction has made it."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.log.answers import Damage, DamagedLogError
from ottla.log.beneath import comparing
from ottla.log.checkpoints import CLEANER_OFFSET_FILE
from ottla.log.compaction.compaction import Compaction
from ottla.log.config import LogConfig
from ottla.log.gaps import GAPS_FILE, Gaps
from ottla.log.log import Log
from ottla.log.recovery.found import What
from ottla.log.replay import Replay, UnreadableError
from ottla.log.scrubbing import scrubbing
from ottla.sim.kernel.disk import Disk
from tests.harness.log.support import DIRECTORY, NOW, batch, disk, open_log, put, raw, small

KILLED: dict[str, Any] = {"clean_shutdown": False, "high_watermark": 30}
POWER: dict[str, Any] = {**KILLED, "same_boot": False, "recovery_point": 30}
PATH = f"{DIRECTORY}/{GAPS_FILE}"
COMPACTED = small(cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.01)
LOST = [(What.MIDDLE, 10, 20)]
SMALL_INDEX = LogConfig(index_interval_bytes=0)


def append(log: Log, end: int, keys: int = 1_000) -> None:
    """Batches of one record, up to this offset."""
    for number in range(log.log_end_offset, end):
        put(log, batch(b"%d" % number, key=b"%d" % (number % keys)))


def replace_active(files: Disk, log: Log, end: int) -> None:
    """Put an earlier copy of the active segment over it, which ends at this offset."""
    assert log.active is not None
    found = log.active.find(end)
    assert found is not None
    files.settle_everything()
    files.overwrite(log.active.file.path, log.active.file.read(0, found[0]))


def holed(files: Disk, config: LogConfig | None = None) -> Log:
    """A log of one segment that lacks the offsets 10 to 19."""
    log = open_log(files, config or LogConfig())
    append(log, 20)
    replace_active(files, log, 10)
    append(log, 30)
    assert log.active is not None
    log.active.flush_indexes()
    return log


def again(files: Disk, config: LogConfig | None = None, **how: Any) -> Log:
    files.settle_everything()
    files.kill()
    return open_log(files, config or LogConfig(), **how)


def found(log: Log) -> list[tuple[What, int, int]]:
    return [(finding.what, finding.first, finding.end) for finding in log.found.findings]


def damages(log: Log) -> list[int]:
    return [damage.first for damage in scrubbing(log) if isinstance(damage, Damage)]


def compact(log: Log) -> list[str]:
    notes: list[str] = []
    for file in Compaction(log, NOW, notes=notes.append):
        if file is not None:
            file.sync()
    return notes


# ---- what is damage ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [LogConfig(), SMALL_INDEX], ids=["no index", "every batch in the index"])
@pytest.mark.parametrize("how", [KILLED, POWER], ids=["killed", "power cut"])
def test_a_start_finds_what_an_older_copy_of_the_newest_segment_lacks(config: LogConfig, how: dict[str, Any]) -> None:
    files = disk()
    holed(files, config)
    log = again(files, config, **how)
    assert set(found(log)) == set(LOST)
    assert log.log_end_offset == 30, "the rest stays until the replica is copied again"


@pytest.mark.parametrize("config", [LogConfig(), SMALL_INDEX], ids=["no index", "every batch in the index"])
def test_a_start_finds_it_in_a_segment_that_was_closed_since(config: LogConfig) -> None:
    files = disk()
    log = holed(files, config)
    log.roll(NOW)
    append(log, 40)
    assert set(found(again(files, config, **KILLED))) == set(LOST)


def test_scrubbing_finds_it() -> None:
    assert damages(holed(disk())) == [10]


@pytest.mark.parametrize("asked", [10, 15])
def test_no_reader_continues_behind_it(asked: int) -> None:
    files = disk()
    holed(files)
    log = again(files, **KILLED)
    assert log.read(0, 1 << 20).next_offset == 10, "a slice ends before it"
    with pytest.raises(DamagedLogError) as raised:
        log.read(asked, 1 << 20)
    assert raised.value.damage is not None
    assert raised.value.damage.first == 10


def test_a_coordinator_does_not_continue_behind_it_unless_it_may_skip_damage() -> None:
    files = disk()
    holed(files)
    replay = Replay(again(files, **KILLED))
    assert len(replay.read(1 << 20)) == 10
    with pytest.raises(UnreadableError) as raised:
        replay.read(1 << 20)
    assert raised.value.damage.first == 10
    replay.skip()
    assert len(replay.read(1 << 20)) == 10
    assert replay.done


def test_a_gap_behind_the_beginning_of_a_cut_log_is_damage_too() -> None:
    files = disk()
    log = open_log(files)
    append(log, 20)
    log.truncate_to(5, now=NOW)
    append(log, 20)
    replace_active(files, log, 10)
    append(log, 30)
    assert damages(log) == [10]


# ---- compaction ----------------------------------------------------------------------------------------------------


def compacted(files: Disk) -> Log:
    """A log with many gaps below offset 60, and none above."""
    log = open_log(files, COMPACTED)
    append(log, 60, keys=7)
    log.roll(NOW)
    assert compact(log) == []
    append(log, 70, keys=7)
    return log


@pytest.mark.parametrize("how", [KILLED, POWER, {}], ids=["killed", "power cut", "clean"])
def test_gaps_that_compaction_made_are_no_damage(how: dict[str, Any]) -> None:
    files = disk()
    compacted(files)
    log = again(files, COMPACTED, **how)
    assert not log.found.findings
    assert not damages(log)
    assert raw(log)


@pytest.mark.parametrize("how", [KILLED, POWER | {"recovery_point": 70}], ids=["killed", "power cut"])
def test_a_compacted_log_lacks_records_too(how: dict[str, Any]) -> None:
    files = disk()
    log = compacted(files)
    replace_active(files, log, 65)
    append(log, 75)
    assert damages(log) == [65]
    assert (What.MIDDLE, 65, 70) in found(again(files, COMPACTED, **how))


def test_a_compaction_does_not_take_it_for_its_own() -> None:
    files = disk()
    log = compacted(files)
    replace_active(files, log, 65)
    append(log, 75)
    log.roll(NOW)
    (note,) = compact(log)
    assert "lacks the offsets 65 to 69" in note
    assert damages(log) == [65]


def test_gaps_are_permitted_before_they_are_made() -> None:
    """So no kill or power cut in between turns compaction into damage."""
    files = disk()
    log = open_log(files, COMPACTED)
    append(log, 60, keys=7)
    log.roll(NOW)
    log.flush()
    for step in Compaction(log, NOW):
        if step is not None:
            step.sync()
        if any(name.endswith(".swap") for name in files.listdir(DIRECTORY)):
            files.crash()
            break
    assert not damages(open_log(files, COMPACTED, **POWER))


def test_a_log_that_kafka_has_compacted_since_has_no_damage() -> None:
    files = disk()
    compacted(files)
    Gaps(files, DIRECTORY, 0).write()
    assert not damages(again(files, COMPACTED, **KILLED))
    files.unlink(f"/data/{CLEANER_OFFSET_FILE}")
    assert damages(again(files, COMPACTED, **KILLED))


# ---- replication ---------------------------------------------------------------------------------------------------


def test_a_follower_may_have_the_gaps_of_its_leader_and_no_others() -> None:
    leader = compacted(disk())
    files = disk()
    log = open_log(files, COMPACTED)
    octets = memoryview(bytearray(raw(leader)))
    log.append_as_follower(octets, now=NOW)
    assert not damages(log)
    assert not again(files, COMPACTED, **KILLED, recovery_point=0).found.findings
    log = again(files, COMPACTED, **KILLED)
    append(log, 75)
    replace_active(files, log, 72)
    append(log, 80)
    assert damages(log) == [72]


def test_after_a_power_cut_gaps_that_no_fsync_covered_count_as_the_leaders() -> None:
    leader, files = compacted(disk()), disk()
    log = open_log(files, COMPACTED)
    append(log, 1)
    earlier = files.content(PATH)
    log.append_as_follower(memoryview(bytearray(raw(leader, 1))), now=NOW)
    files.settle_everything()
    files.put(PATH, earlier)  # the power cut has lost the newer one
    log = again(files, COMPACTED, **POWER | {"recovery_point": 1})
    assert not log.found.findings
    assert not damages(again(files, COMPACTED, **KILLED))


# ---- the file ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("octets", [None, b"", b"0\n1\n9 1\n"], ids=["none", "empty", "wrong checksum"])
def test_without_the_file_gaps_count_from_the_present_end_on(octets: bytes | None) -> None:
    files = disk()
    log = holed(files)
    files.put(PATH, octets)
    log = again(files, **KILLED)
    assert not log.found.findings
    append(log, 40)
    replace_active(files, log, 35)
    append(log, 50)
    assert set(found(again(files, **KILLED))) == {(What.MIDDLE, 35, 40)}


@pytest.mark.parametrize("octets", [None, b"0\n1\n9 1\n"], ids=["none", "wrong checksum"])
def test_a_scrub_writes_the_file_again(octets: bytes | None) -> None:
    files = disk()
    log = compacted(files)
    files.settle_everything()
    before = files.content(PATH)
    files.put(PATH, octets)
    notes: list[str] = []
    assert not [each for each in comparing(log, notes.append, NOW) if isinstance(each, Damage)]
    assert files.content(PATH) == before
    assert len(notes) == 1
