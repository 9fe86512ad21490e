"""Flipped bits anywhere in a partition's files: a log always opens, and whatever it is asked, it answers or refuses."""

import random
from contextlib import suppress
from typing import Any

import pytest

from ottla.log.answers import DamagedLogError, Isolation, Origin
from ottla.log.config import LogConfig
from ottla.log.log import Log
from ottla.protocol.records.batch import iter_batches
from ottla.protocol.records.record import Record
from ottla.sim.kernel.disk import Disk
from tests.harness.log.support import (
    DIRECTORY,
    NOW,
    batch,
    delete_old_segments,
    disk,
    maintain,
    marker,
    offsets,
    open_log,
    put,
    records,
)

CONFIG = LogConfig(segment_bytes=2000, index_interval_bytes=150)
SEEDS = 150
LIVES: dict[str, dict[str, Any]] = {
    "a clean stop": {"clean_shutdown": True},
    "a kill": {"clean_shutdown": False},
    "a power cut": {"clean_shutdown": False, "same_boot": False},
}


def filled() -> tuple[Disk, Log]:
    """Some segments with producers, transactions and epochs."""
    files = disk()
    log = open_log(files, CONFIG)
    sequences = {7: 0, 8: 0}
    rng = random.Random(5)
    for i in range(60):
        at, count = NOW + 10 * i, rng.randrange(1, 4)
        header = {}
        who = rng.choice((None, 7, 8))
        if who is not None:
            header = {
                "producer_id": who,
                "producer_epoch": 0,
                "base_sequence": sequences[who],
                "transactional": who == 8,
            }
            sequences[who] += count
        log.append_as_leader(batch(*[b"v" * 20] * count, at=at, **header), now=at, leader_epoch=i // 20)
        if i % 17 == 16:
            ended = marker(8, commit=bool(i % 2), at=at)
            log.append_as_leader(ended, now=at, leader_epoch=i // 20, origin=Origin.COORDINATOR)
        log.advance_high_watermark(log.log_end_offset)
    log.flush()
    return files, log


def damage(files: Disk, rng: random.Random) -> str:
    """Flip some bits of one file, in a log mostly of batches' headers, sometimes cut it too. What was done."""
    name = rng.choice(files.listdir(DIRECTORY))
    content = files._file(f"{DIRECTORY}/{name}").content
    done = [name]
    starts = [position for _, position in iter_batches(bytes(content))] if name.endswith(".log") else []
    for _ in range(rng.choice((1, 1, 2, 8)) if content else 0):
        at = rng.randrange(len(content))
        if starts and rng.random() < 0.7:
            at = rng.choice(starts) + rng.randrange(61)
        bit = rng.randrange(8)
        content[at] ^= 1 << bit
        done.append(f"{at}.{bit}")
    if rng.random() < 0.1:
        del content[rng.randrange(len(content) + 1) :]
    files._file(f"{DIRECTORY}/{name}").kept[:] = content
    return " ".join(done)


def use(log: Log) -> None:
    """Everything a node does with a log."""
    log.check()
    log.advance_high_watermark(log.log_end_offset)
    with suppress(DamagedLogError):
        read_through(log)
    for offset in range(log.log_start_offset, min(log.log_end_offset, 150), 7):
        with suppress(DamagedLogError):
            log.read(offset, 100, Isolation.TXN_COMMITTED)
    log.offset_for_timestamp(NOW + 100)
    log.max_timestamp()
    for _ in range(30):
        log.append_as_leader(batch(b"x" * 100, at=NOW + 5000), now=NOW + 5000, leader_epoch=9)
    log.advance_high_watermark(log.log_end_offset)
    log.check()
    log.deadline(NOW + 10**6)
    maintain(log, NOW + 10**6)
    delete_old_segments(log, NOW + 10**9)
    log.close(NOW)


def read_through(log: Log) -> None:
    offset = log.log_start_offset
    while (result := log.read(offset, 500)).slice is not None:
        result.slice.read()
        if result.next_offset <= offset:
            break
        offset = result.next_offset


@pytest.mark.parametrize("how", LIVES.values(), ids=LIVES)
def test_a_log_with_flipped_bits_opens_and_is_used(how: dict[str, Any]) -> None:
    files, log = filled()
    if how["clean_shutdown"]:
        log.close(NOW)
    end = log.log_end_offset
    for seed in range(SEEDS):
        rng = random.Random(seed)
        damaged = files.clone(rng)
        done = damage(damaged, rng)
        recovery_point = rng.choice((0, 20, end))
        try:
            use(open_log(damaged, CONFIG, recovery_point=recovery_point, high_watermark=end, **how))
        except Exception as error:
            error.add_note(f"seed {seed}: {done}")
            raise


@pytest.mark.parametrize("bit", [0, 1, 6, 20, 31, 32, 47, 62, 63])
@pytest.mark.parametrize("how", LIVES.values(), ids=LIVES)
def test_a_flipped_bit_of_a_base_offset_costs_no_more_than_what_comes_behind(bit: int, how: dict[str, Any]) -> None:
    """No checksum covers it. The log opens, what stood before is there, and it goes on."""
    files = disk()
    log = open_log(files)
    for _ in range(6):
        put(log, batch(b"v", b"w"))
    log.flush()
    if how["clean_shutdown"]:
        log.close(NOW)
    content = files._file(f"{DIRECTORY}/{0:020d}.log").content
    position = [position for _, position in iter_batches(bytes(content))][3]
    content[position + 7 - bit // 8] ^= 1 << bit % 8
    again = open_log(files, **how)
    before = again.read(0, 1 << 20).slice
    assert before is not None
    assert [header.base_offset for header, _ in iter_batches(before.read())][:3] == [0, 2, 4]
    end = again.log_end_offset
    assert put(again, batch(b"x")) == end
    assert offsets(records(again, start=end)) == [end]


def test_a_damaged_index_misleads_no_truncation() -> None:
    files, config = disk(), LogConfig(index_interval_bytes=150)
    log = open_log(files, config)
    for number in range(40):
        put(log, batch(b"%d" % number))
    log.close(NOW)
    index = f"{DIRECTORY}/{0:020d}.index"
    size = len(files._file(index).content)
    for bit in range(0, 8 * size, 3):
        damaged = files.clone(random.Random(1))
        for content in (damaged._file(index).content, damaged._file(index).kept):
            content[bit // 8] ^= 1 << bit % 8
        again = open_log(damaged, config)
        again.truncate_to(20, now=NOW)
        assert again.log_end_offset == 20, bit
        assert put(again, batch(b"x")) == 20
        assert offsets(records(again)) == list(range(21)), bit


def change_beneath(files: Disk, rng: random.Random, name: str) -> str:
    """Change one file of a log that is open, as a disk or another process does. What was done."""
    path = f"{DIRECTORY}/{name}"
    files.settle_everything()
    content: bytearray | None = bytearray(files.content(path))
    how = rng.choice(("flip", "cut", "replace", "lengthen", "lose"))
    if not content or how == "lose":
        how, content = "lose", None
    elif how == "flip":
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    elif how == "cut":
        del content[rng.randrange(len(content)) :]
    elif how == "replace":
        content = bytearray(rng.randbytes(len(content)))
    else:
        content += rng.choice((bytes(50), rng.randbytes(50)))
    if content is None or rng.random() < 0.3:
        files.put(
            path, None if content is None else bytes(content)
        )  # the log has the old one open, or has no file open yet
        how += " in another file"
    else:
        files.overwrite(path, bytes(content))
    return f"{name}: {how}"


@pytest.mark.parametrize("of_batches", [False, True])
def test_a_log_whose_files_change_beneath_it_is_used_and_cut(of_batches: bool) -> None:
    """Nothing but batches is needed: without any other file, a cut log has the records that it should have."""
    filled_files, filled_log = filled()
    filled_log.close(NOW)
    for seed in range(SEEDS // 3):
        rng = random.Random(seed)
        files = filled_files.clone(rng)
        log = open_log(files, CONFIG, high_watermark=filled_log.log_end_offset)
        for number in range(rng.randrange(12)):
            put(log, batch(b"%d" % number * 20, at=NOW + 700))
        log.advance_high_watermark(log.log_end_offset)
        before = records(log)
        if rng.random() < 0.5:
            log.max_timestamp()
        names = [name for name in files.listdir(DIRECTORY) if name.endswith(".log") is of_batches]
        done = [change_beneath(files, rng, name) for name in rng.sample(names, 1 if of_batches else 4)]
        try:
            use_and_cut(log, rng, None if of_batches else before)
        except Exception as error:
            error.add_note(f"seed {seed}: {done}")
            raise


def use_and_cut(log: Log, rng: random.Random, before: list[Record] | None) -> None:
    """Use the log and cut it. `before`: its records, if they are not damaged."""
    with suppress(DamagedLogError):
        read_through(log)
        log.offset_for_timestamp(NOW + rng.randrange(600))
        log.max_timestamp()
    if before is not None:
        assert records(log) == before
    cut = rng.choice((log.log_end_offset - 1, rng.randrange(log.log_end_offset)))
    log.truncate_to(cut, now=NOW)
    log.check()
    kept = [] if before is None else [record for record in before if record.offset < log.log_end_offset]
    assert before is None or [record for record in before if record.offset < cut][: len(kept)] == kept
    end = log.log_end_offset
    assert put(log, batch(b"x", at=NOW + 5000)) == end
    log.check()
    if before is not None:
        assert records(log)[:-1] == kept
        assert cut - end < 3, "batches have up to three records"
    log.deadline(NOW + 10**6)
    maintain(log, NOW + 10**6)


@pytest.mark.parametrize("how", ["flip", "cut", "lose"])
def test_a_damaged_time_index_deletes_no_segment(how: str) -> None:
    """Its last entry tells retention how old the records of the segment are."""
    files, config = disk(), LogConfig(segment_bytes=1000, index_interval_bytes=100, retention_ms=10_000)
    log = open_log(files, config)
    for number in range(30):
        put(log, batch(b"%d" % number * 20, at=NOW + 1_000 * number), now=NOW)
    log.close(NOW)
    path = f"{log.segments[1].path}.timeindex"
    content = bytearray(files.content(path))
    if how == "flip":
        content[-10] ^= 1
    files.put(path, None if how == "lose" else bytes(content[:-24] if how == "cut" else content))
    again = open_log(files, config)
    newest = again.segments[1].max_timestamp()
    assert newest == (NOW + 1_000 * (again.bases[2] - 1), again.bases[2] - 1)
    assert delete_old_segments(again, newest[0] + 10_000) == 1, "only the first one"
    assert again.offset_for_timestamp(newest[0]) == (*newest, 0)


def test_a_new_segment_begins_without_what_another_process_has_put_there() -> None:
    files, config = disk(), LogConfig(segment_bytes=1000, index_interval_bytes=100)
    log = open_log(files, config)
    put(log, batch(b"a" * 400))
    put(log, batch(b"b" * 400))
    for suffix in (".log", ".index", ".timeindex", ".txnindex"):
        files.put(f"{DIRECTORY}/{2:020d}{suffix}", bytes(range(200)))
    put(log, batch(b"c" * 400))
    assert log.bases == [0, 2]
    log.close(NOW)
    again = open_log(files, config)
    assert offsets(records(again)) == [0, 1, 2]
    assert not again.segments[1].txn_index.aborted()
    assert again.segments[1].max_timestamp() == (NOW, 2)


def test_a_segment_that_is_cut_below_one_header_has_no_first_timestamp() -> None:
    files = disk()
    log = open_log(files)
    put(log, batch(b"a"))
    put(log, batch(b"b"))
    log.flush()
    segment = log.segments[0]
    files.overwrite(segment.file.path, files.content(segment.file.path)[:60])
    log.truncate_to(1, now=NOW)
    assert segment.rolling_timestamp() == -1
    assert (log.log_end_offset, segment.size) == (0, 0), "nothing whole is left"
    assert put(log, batch(b"c")) == 0


def test_a_log_without_segments_creates_its_directory_again() -> None:
    files = disk()
    log = open_log(files)
    put(log, batch(b"a"))
    log.close(NOW)
    files.unlink(f"{DIRECTORY}/{0:020d}.log")
    again = open_log(files)
    assert not again.segments
    files.rmtree(DIRECTORY)
    assert put(again, batch(b"b")) == 0
    again.close(NOW)
    assert offsets(records(open_log(files))) == [0]
