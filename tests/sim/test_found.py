"""What the simulator found, each as the smallest test that shows it: seeds change their meaning as it grows."""

import random
from pathlib import Path

import pytest

from ottla.broker.config.values import BrokerSettings, ConfigRefusedError
from ottla.broker.effects import Sync
from ottla.broker.node import Node
from ottla.broker.partitions.replicas import LocalTopic
from ottla.broker.topics.new_topic import NewTopic
from ottla.log.answers import Isolation, StorageError
from ottla.log.config import LogConfig
from ottla.log.files import DiskFiles, FileSystem
from ottla.log.log import Log
from ottla.log.retention import deleting_old
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.sim.clients.batches import decode_batches, encode_batch
from ottla.sim.clients.history import History
from ottla.sim.clients.racers import Flight, Races
from ottla.sim.kernel.disk import Disk
from ottla.sim.kernel.trace import InvariantError
from ottla.sim.workloads.checkers import audit_keys, node_of
from tests.harness.sim.stage import Stage, make_host
from tests.harness.sim.toy import WorstCase

NOW = 1_800_000_000_000
DIRECTORY = "/data/t-0"


def make_disk() -> Disk:
    disk = Disk(random.Random(1))
    disk.makedirs("/data")
    disk.sync_directory("/")
    return disk


def create(node: Node, now: int, name: str, overrides: dict[str, str] | None = None) -> LocalTopic:
    node.metadata.at_once(now, node.topics.creating(now, [NewTopic(name, 1, overrides or {})]))
    return node.replicas.by_name[name]


def open_log(
    disk: Disk, config: LogConfig, *, clean_shutdown: bool = False, same_boot: bool = False, recovery_point: int = 0
) -> Log:
    return Log.open(
        disk,
        DIRECTORY,
        config,
        topic_id=b"0123456789abcdef",
        now=NOW,
        clean_shutdown=clean_shutdown,
        same_boot=same_boot,
        recovery_point=recovery_point,
    )


def append(log: Log, text: str, now: int = NOW) -> int:
    batch = bytearray(encode_batch([(b"k", text.encode())], now))
    end = log.append_as_leader(memoryview(batch), now=now, leader_epoch=1).last_offset + 1
    log.advance_high_watermark(end)
    return end


def read_all(log: Log, max_bytes: int) -> list[int]:
    offsets: list[int] = []
    position = log.log_start_offset
    while position < log.log_end_offset:
        result = log.read(position, max_bytes, Isolation.HIGH_WATERMARK, True)
        assert result.slice is not None, f"nothing at {position}, the log ends at {log.log_end_offset}"
        for batch in decode_batches(result.slice.read()):
            offsets += [note.offset for note in batch.notes]
            position = batch.last_offset + 1
    return offsets


@pytest.mark.parametrize("max_bytes", [1, 100, 250, 1 << 20])
def test_a_reader_at_the_end_of_a_segment_goes_on_in_the_next(max_bytes: int) -> None:
    """It had read up to the end of the active segment, then the log rolled: it saw nothing for ever."""
    log = open_log(make_disk(), LogConfig(segment_ms=1_000))
    for i in range(12):
        append(log, f"number {i}", NOW + 400 * i)
        assert read_all(log, max_bytes) == list(range(i + 1))


def test_a_new_data_directory_survives_the_power_cut() -> None:
    """Nobody synced the name of the data directory itself, so all that was acknowledged could go with it."""
    host = make_host()
    assert host.start()
    host.disk.rng = WorstCase()
    host.kill(power_cut=True)
    assert "meta.properties" in host.disk.listdir("/data")


@pytest.mark.parametrize("real", [False, True])
def test_a_file_closed_before_its_sync_ran_is_synced_all_the_same(real: bool, tmp_path: Path) -> None:
    """Retention deleted a segment while the disk thread had it to sync: the descriptor was gone under it."""
    files: FileSystem = DiskFiles() if real else make_disk()
    path = f"{tmp_path if real else '/data'}/f"
    file = files.open(path, create=True)
    file.write(b"x")
    file.pin()
    files.rename(path, f"{path}.deleted")
    files.unlink(f"{path}.deleted")
    file.close()
    file.sync()
    file.unpin()
    with pytest.raises((AssertionError, FileNotFoundError)):
        file.sync()


@pytest.mark.parametrize("death", ["clean stop", "kill", "power cut"])
def test_all_five_batches_in_flight_are_known_as_duplicates_after_a_restart(death: str) -> None:
    """Kafka's producer snapshot holds the last batch only; retries of the others were out of order, then duplicated."""
    disk = make_disk()
    log = open_log(disk, LogConfig(segment_ms=1_000))
    batches = [
        encode_batch([(b"k", b"v")], NOW + 300 * i, producer_id=7, producer_epoch=0, base_sequence=i) for i in range(12)
    ]
    for i, batch in enumerate(batches):
        log.append_as_leader(memoryview(bytearray(batch)), now=NOW + 300 * i, leader_epoch=1)
    if death == "clean stop":
        log.close(NOW)
    else:
        log.flush()
    disk.sync_directory("/data")
    if death == "power cut":
        disk.crash()
    else:
        disk.kill()
    again = open_log(disk, LogConfig(), clean_shutdown=death == "clean stop", same_boot=death == "kill")
    for i in range(7, 12):
        appended = again.append_as_leader(memoryview(bytearray(batches[i])), now=NOW, leader_epoch=2)
        assert appended.duplicate
        assert appended.base_offset == i


def test_a_flush_behind_a_slow_disk_is_asked_for_once() -> None:
    """`tick` asked for the same flush again and again while the first was under way, and never returned."""
    host = make_host({"ottla.durability": "page-cache", "log.flush.interval.ms": "50"})
    assert host.start()
    node = node_of(host.life)
    now = host.clock.now_ms
    partition = create(node, now, "t").partitions[0]
    partition.append(now, memoryview(bytearray(encode_batch([(b"k", b"v")], now))))
    syncs = 0
    for later in range(0, 2_000, 10):
        node.tick(now + later)
        syncs += sum(isinstance(effect, Sync) for effect in node.take_effects(now + later))
    assert syncs == 1


def test_indexes_that_recovery_made_survive_the_next_power_cut() -> None:
    """They were rebuilt and not synced, but lay below the recovery point from then on."""
    disk = make_disk()
    log = open_log(disk, LogConfig(segment_ms=1_000, index_interval_bytes=0))
    for i in range(12):
        append(log, f"number {i}", NOW + 400 * i)
    log.flush()
    disk.sync_directory("/data")
    for name in disk.listdir(DIRECTORY):
        if name.endswith("index"):
            disk.unlink(f"{DIRECTORY}/{name}")
    disk.crash()
    open_log(disk, LogConfig())
    found = {name: disk.read_bytes(f"{DIRECTORY}/{name}") for name in disk.listdir(DIRECTORY)}
    disk.rng = WorstCase()
    disk.crash()
    assert {name: disk.read_bytes(f"{DIRECTORY}/{name}") for name in disk.listdir(DIRECTORY)} == found


@pytest.mark.parametrize("synced", [False, True])
def test_what_a_killed_process_left_unsynced_is_synced_before_it_counts(synced: bool) -> None:
    """Segments that the killed process had closed were never synced, but the recovery point moved over them.

    Nor were the indexes of one that had been synced while it was active.
    """
    disk = make_disk()
    log = open_log(disk, LogConfig(segment_ms=1_000))
    for i in range(11):
        append(log, f"number {i}", NOW + 400 * i)
    if synced:
        log.flush()
    recovery_point = log.recovery_point
    append(log, "number 11", NOW + 6_000)
    disk.sync_directory("/data")
    disk.kill()
    again = open_log(disk, LogConfig(segment_ms=1_000), same_boot=True, recovery_point=recovery_point)
    append(again, "one more")
    again.flush()
    assert again.recovery_point == 13
    last_closed = f"{DIRECTORY}/{again.bases[-2]:020d}.timeindex"
    index = disk.read_bytes(last_closed)
    disk.rng = WorstCase()
    disk.crash()
    assert disk.read_bytes(last_closed) == index
    after = open_log(disk, LogConfig())
    after.advance_high_watermark(after.log_end_offset)
    assert read_all(after, 1 << 20) == list(range(13))


def test_a_clean_stop_on_a_full_disk_is_no_crash() -> None:
    """Checkpoints that could not be written made `stop` raise."""
    host = make_host()
    assert host.start()
    host.disk.capacity = host.disk.used
    host.stop()
    assert ".kafka_cleanshutdown" not in host.disk.listdir("/data")
    host.disk.capacity = None
    assert host.start()


def test_indexes_of_the_segment_that_ends_at_the_recovery_point_are_not_trusted() -> None:
    """The segment was synced while it was active; then it was closed, and its indexes were torn by the power cut."""
    disk = make_disk()
    log = open_log(disk, LogConfig(segment_ms=10_000, index_interval_bytes=0))
    for i in range(12):
        append(log, f"number {i}", NOW + i)
    append(log, "in the next segment", NOW + 11_000)
    log.flush()
    disk.sync_directory("/data")
    disk.crash()
    index = f"{DIRECTORY}/00000000000000000000.index"
    disk.write_atomically(index, bytes(4) + disk.read_bytes(index)[4:])
    again = open_log(disk, LogConfig(), recovery_point=12)
    again.advance_high_watermark(again.log_end_offset)
    for offset in range(12):
        again.segments.cursors.clear()
        file_slice = again.read(offset, 1 << 20, Isolation.HIGH_WATERMARK, True).slice
        assert file_slice is not None
        assert decode_batches(file_slice.read())[0].base_offset == offset


def test_a_node_with_nothing_left_to_compact_rests() -> None:
    """After a compaction `deadline` stayed in the past, and the loop went round as fast as it could."""
    host = make_host(
        {"log.cleaner.backoff.ms": "1000", "log.roll.ms": "500", "log.cleaner.min.cleanable.ratio": "0.01"}
    )
    assert host.start()
    node = node_of(host.life)
    partition = create(node, host.clock.now_ms, "t", {"cleanup.policy": "compact"}).partitions[0]
    for _ in range(10):
        host.world.run(host.world.clock.now_us + 300_000)
        now = host.clock.now_ms
        partition.append(now, memoryview(bytearray(encode_batch([(b"k", b"v")], now))))
    host.world.run(host.world.clock.now_us + 3_000_000)
    assert len(partition.log.segments) < 6
    before = host.world.agenda.events_run
    host.world.run(host.world.clock.now_us + 60_000_000)
    assert host.world.agenda.events_run - before < 1_000


def test_no_coordinator_while_the_store_is_full() -> None:
    """FindCoordinator let the store's failure out, and the connection was closed without an answer."""
    stage = Stage(1)
    stage.disk.capacity = stage.disk.used
    message = stage.ask(FindCoordinatorRequest(coordinator_keys=["g"]))
    assert message.coordinators[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_a_compacted_log_does_not_keep_the_indexes_of_the_old_one() -> None:
    """The power cut kept the renaming of the log and lost that of its indexes, so old ones stood beside it."""
    disk = make_disk()
    log = open_log(disk, LogConfig())
    for i in range(12):
        append(log, f"number {i}", NOW + i)
        if i in (5, 11):
            log.roll(NOW + i)
    append(log, "in the last segment", NOW + 21)
    log.flush()
    disk.sync_directory("/data")
    merged = bytearray()
    for offset in (5, 11):
        file_slice = log.read(offset, 1, Isolation.HIGH_WATERMARK, True).slice
        assert file_slice is not None
        merged += file_slice.read()
    first, second = f"{DIRECTORY}/00000000000000000000", f"{DIRECTORY}/00000000000000000006"
    disk.write_atomically(f"{first}.index.swap", b"")
    disk.write_atomically(f"{first}.timeindex.swap", b"")
    disk.write_atomically(f"{first}.log", bytes(merged))
    for suffix in (".log", ".index", ".timeindex"):
        disk.unlink(f"{second}{suffix}")
    disk.sync_directory(DIRECTORY)
    disk.crash()
    again = open_log(disk, LogConfig(), recovery_point=13)
    again.advance_high_watermark(again.log_end_offset)
    found = again.offset_for_timestamp(NOW + 8)
    assert found is not None
    assert found.offset == 11


def test_a_deleted_topic_and_a_full_store() -> None:
    """The failure of the last commit of a deletion went out of `tick`; a full disk filled the log with one sentence."""
    host = make_host()
    assert host.start()
    node = node_of(host.life)
    now = host.clock.now_ms
    create(node, now, "t")
    other = create(node, now, "u").partitions[0]
    node.metadata.at_once(now, node.topics.deleting([node.image.topics["t"]]))
    host.disk.capacity = host.disk.used
    lines = host.world.trace.lines
    before = len(lines)
    assert host.life is not None
    host.life.enter(node.tick)
    host.world.run(host.world.clock.now_us + 100_000)
    for _ in range(3):
        with pytest.raises(StorageError) as failed:
            other.append(now, memoryview(bytearray(encode_batch([(b"k", b"v")], now))))
        node.failures.storage_failed(now, other, str(failed.value))
    assert len([line for line in list(lines)[before:] if " node " in line]) == 2
    host.disk.capacity = None
    host.kill(power_cut=False)
    assert host.start()
    assert not any("t-0" in name for name in host.disk.listdir("/data"))


def test_syncs_under_way_end_one_by_one_when_one_has_failed() -> None:
    """The first failure took the pins from the others' files, and the disk thread found them closed."""
    disk = make_disk()
    log = open_log(disk, LogConfig())
    rounds = []
    for i in range(3):
        append(log, f"number {i}")
        log.roll(NOW + i)
        rounds.append(log.pending_sync())
    for file in rounds[0]:
        file.sync()
    log.synced(1)
    log.sync_failed(OSError("no"))
    for file in rounds[2]:
        file.sync()
    log.synced(3)
    assert log.recovery_point == 1


def test_a_flush_does_not_end_a_sync_that_is_under_way() -> None:
    """It ended the oldest round instead of its own, and counted what the disk thread had not synced yet."""
    disk = make_disk()
    log = open_log(disk, LogConfig())
    append(log, "one")
    log.roll(NOW)
    disk.sync_directory("/data")
    under_way = log.pending_sync()
    append(log, "two")
    log.flush()
    assert log.recovery_point == 2
    for file in under_way:
        file.sync()
    log.synced(1)
    disk.rng = WorstCase()
    disk.crash()
    again = open_log(disk, LogConfig(), recovery_point=2)
    again.advance_high_watermark(again.log_end_offset)
    assert read_all(again, 1 << 20) == [0, 1]


def test_producers_outlive_the_segments_that_retention_takes() -> None:
    """After a recovery without a sound snapshot nothing but the deleted batches knew them."""
    disk = make_disk()
    config = LogConfig(segment_ms=1_000)
    log = open_log(disk, config)
    for i in range(6):
        now, who = NOW + 600 * i, 7 + i // 3
        batch = encode_batch([(b"k", b"v")], now, producer_id=who, producer_epoch=0, base_sequence=i % 3)
        end = log.append_as_leader(memoryview(bytearray(batch)), now=now, leader_epoch=1).last_offset + 1
        log.advance_high_watermark(end)
    log.flush()
    disk.sync_directory("/data")
    for name in disk.listdir(DIRECTORY):
        if name.endswith(".snapshot"):
            disk.unlink(f"{DIRECTORY}/{name}")
    disk.crash()
    again = open_log(disk, config)
    again.advance_high_watermark(again.log_end_offset)
    assert sorted(again.producers.entries) == [7, 8]
    again.delete_records_before(5)
    for file in deleting_old(again, NOW):
        file.sync()
    assert again.segments[0].base_offset > 2
    disk.kill()
    assert sorted(open_log(disk, config, same_boot=True).producers.entries) == [7, 8]


def test_producers_outlive_their_deleted_records_where_the_segment_stands() -> None:
    """As they did before the kill: a repeated batch of theirs is known as one."""
    disk = make_disk()
    log = open_log(disk, LogConfig())
    for i in range(6):
        batch = encode_batch([(b"k", b"v")], NOW, producer_id=7 + i // 3, producer_epoch=0, base_sequence=i % 3)
        end = log.append_as_leader(memoryview(bytearray(batch)), now=NOW, leader_epoch=1).last_offset + 1
        log.advance_high_watermark(end)
    log.delete_records_before(5)
    assert sorted(log.producers.entries) == [7, 8]
    disk.kill()
    again = Log.open(
        disk,
        DIRECTORY,
        LogConfig(),
        topic_id=b"0123456789abcdef",
        now=NOW,
        clean_shutdown=False,
        same_boot=True,
        recovery_point=0,
        log_start_offset=5,
        high_watermark=6,
    )
    assert again.producers.encode() == log.producers.encode()


@pytest.mark.parametrize("name", ["offsets.topic", "transaction.state.log", "share.coordinator.state.topic"])
def test_segments_too_small_for_any_topic_are_refused_at_the_start(name: str) -> None:
    """The node started, and then could make no coordinator: the topic's own config was refused."""
    with pytest.raises(ConfigRefusedError, match="at least"):
        BrokerSettings.load({f"{name}.segment.bytes": "1000"})


def test_a_request_that_a_node_forwards_twice_may_succeed_twice() -> None:
    """cluster-admins 484: a deletion was done, its answer was lost, and the next controller found a new topic."""
    races = Races()
    races.made.done = [Flight("t", 0, 10), Flight("t", 60, 70)]
    races.deleted.done = [Flight("t", 20, 100)]
    with pytest.raises(InvariantError, match="made 2 times, perhaps 0 more, by other writers 0; deleted 1 times"):
        races.check({}, {})
    races.deleted.repeated = races.deleted.done
    races.check({}, {})
    races.made.done.append(Flight("t", 200, 210))
    with pytest.raises(InvariantError, match="made 3 times"):
        races.check({}, {})
    creations = Races()
    creations.made.done = creations.made.repeated = [Flight("t", 0, 100)]
    creations.deleted.done = [Flight("t", 20, 30)]
    creations.check({"t": None}, {})


def test_a_tombstone_that_may_have_survived_a_power_cut_may_have_removed_its_key() -> None:
    history, where = History([], groups_vanish=False), ("t", 0)
    history.acknowledge("producer", where, 0, [(b"key", b"value"), (b"key", None)])
    history.forget_beyond({where: 1})
    audit_keys(where, history, {})
    history.acknowledge("producer", where, 1, [(b"other", None)])  # the power cut has removed the tombstone
    with pytest.raises(InvariantError, match="was last acknowledged at 0"):
        audit_keys(where, history, {})
