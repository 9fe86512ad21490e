"""Flipped bits anywhere in a partition's files: a log always opens, and whatever it is asked, it answers or refuses."""

import random
from contextlib import suppress
from typing import Any

import pytest

from ottla.log.answers import DamagedLogError, Isolation, Origin
from ottla.log.config import LogConfig
from ottla.log.log import Log
from ottla.protocol.records.batch import iter_batches
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
    assert offsets(records(again))[:6] == list(range(6))
    end = again.log_end_offset
    assert put(again, batch(b"x")) == end
    assert offsets(records(again))[-1] == end


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
