"""Scrubbing finds every damaged batch of a closed segment, and nothing in sound logs."""

from __future__ import annotations

import random

import pytest

from ottla.log.answers import Damage
from ottla.log.checking import damage_in_first
from ottla.log.compaction.compaction import Compaction
from ottla.log.config import LogConfig
from ottla.log.log import Log
from ottla.log.scrubbing import scrubbing
from ottla.protocol.records.batch import iter_batches
from ottla.sim.kernel.disk import Disk
from tests.harness.log.support import DIRECTORY, NOW, batch, disk, open_log, put, small

CONFIG = LogConfig(segment_bytes=1500, index_interval_bytes=300)


def filled() -> tuple[Disk, Log]:
    files = disk()
    log = open_log(files, CONFIG)
    for number in range(70):
        put(log, batch(b"%d" % number), epoch=1 + number // 30)
    return files, log


def damages(log: Log) -> list[Damage]:
    return [found for found in scrubbing(log) if isinstance(found, Damage)]


def test_a_sound_log_is_read_to_its_end() -> None:
    files, log = filled()
    found = list(scrubbing(log))
    assert not damages(log)
    indexes = sum(files.size(f"{each.path}{kind}") for each in log.segments[:-1] for kind in (".index", ".timeindex"))
    assert sum(size for size in found if isinstance(size, int)) == log.size_bytes + indexes


@pytest.mark.parametrize("number", [0, 3, -1])
@pytest.mark.parametrize("at", [*range(17), 20, 27, 60, 64])
def test_any_flipped_bit_of_a_batch_is_found(number: int, at: int) -> None:
    files, log = filled()
    file = files._file(f"{log.segments[1].path}.log")
    places = [position for _, position in iter_batches(bytes(file.content))]
    for bit in range(8):
        file.content[places[number] + at] ^= 1 << bit
        (damage,) = damages(log)
        offset = log.bases[1] + number % len(places)
        assert damage.first <= offset < damage.end, (bit, damage)
        assert damage.position <= places[number]
        file.content[places[number] + at] ^= 1 << bit
    assert not damages(log)


def test_a_batch_that_claims_an_offset_of_another_epoch_is_damaged_where_it_belongs() -> None:
    files = disk()
    log = open_log(files, LogConfig(segment_bytes=1 << 20))
    for number in range(70):
        put(log, batch(b"%d" % number), epoch=1 + number // 30)
    content = files._file(f"{log.segments[0].path}.log").content
    content[[position for _, position in iter_batches(bytes(content))][3] + 7] ^= 64
    (damage,) = damages(log)
    assert damage.first == 3


def test_a_segment_that_was_cut_is_found() -> None:
    files, log = filled()
    log.close(NOW)
    path = f"{DIRECTORY}/{log.bases[1]:020d}.log"
    places = [position for _, position in iter_batches(files.read_bytes(path))]
    files.open(path).truncate(places[-2])
    log = open_log(files.clone(random.Random(1)), CONFIG)
    (damage,) = damages(log)
    assert damage.first == log.bases[2] - 2
    assert damage.end == log.bases[2]


def test_compacted_logs_are_sound() -> None:
    config = small(cleanup_policy=frozenset({"compact"}), index_interval_bytes=300)
    log = open_log(disk(), config)
    for number in range(90):
        put(log, batch(b"%d" % number, key=b"%d" % (number % 7)), epoch=number // 25)
    for file in Compaction(log, NOW):
        if file is not None:
            file.sync()
    assert not damages(log)


def test_segments_that_go_meanwhile_are_left() -> None:
    _, log = filled()
    steps = scrubbing(log)
    next(steps)
    log.truncate_fully_and_start_at(100, now=NOW)
    assert not [found for found in steps if isinstance(found, Damage)]


def test_a_batch_that_a_reader_gets_is_damaged_also_if_none_begins_there() -> None:
    files = disk()
    log = open_log(files)
    for number in range(3):
        put(log, batch(b"%d" % number))
    result = log.read(1, 1000)
    assert result.slice is not None
    assert damage_in_first(result.slice, 1) is None
    content = files._file(result.slice.file.path).content
    for bit in [*range(8 * 8, 12 * 8), *range(16 * 8, 17 * 8)]:  # of its length and its magic
        content[result.slice.position + bit // 8] ^= 1 << bit % 8
        damage = damage_in_first(result.slice, 1)
        assert damage is not None, bit
        assert damage.first == 1, bit
        content[result.slice.position + bit // 8] ^= 1 << bit % 8
