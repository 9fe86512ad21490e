"""A coordinator's log with one damaged byte: that coordinator is out of service and says so, the node goes on."""

from collections.abc import Callable

import pytest
from test_shard_host import commit, committed, error_of

from ottla.broker.coordinators.shards import SKIP_DAMAGED, ShardHost
from ottla.groups.shard import GroupShard
from ottla.log.answers import Origin
from ottla.log.replay import ReplacedError, Replay, UnreadableError
from ottla.machine import Decision
from ottla.protocol.coordinator_records import partition_of
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.list_groups import ListGroupsRequest
from ottla.protocol.records.batch import HEADER_BYTES, iter_batches, set_crc
from ottla.protocol.records.record import Record, build_batch
from tests.harness.groups.host_stage import HostStage

E = ErrorCode
DAMAGED = partition_of("g", 3)  # and "j"; "simple" is another's
LOG = f"/data/__consumer_offsets-{DAMAGED}/{0:020d}.log"
COMMITS = 12


def batches_of(content: bytearray) -> list[int]:
    return [position for _, position in iter_batches(content)]


def flip(at: int, bit: int = 0) -> Callable[[bytearray, int], None]:
    def damage(content: bytearray, batch: int) -> None:
        content[batch + at] ^= 1 << bit

    return damage


DAMAGES = {
    "a record": flip(HEADER_BYTES + 40),
    "the checksum": flip(18),
    "the magic byte": flip(16, 6),
    "a shorter length": flip(10, 0),
    "a negative length": flip(8, 7),
    "a wild length": flip(8, 6),
    "a lower offset": flip(7, 0),
    "a far offset": flip(0, 6),
    "a negative offset": flip(0, 7),
    "another offset's batch": flip(7, 4),
}


def damaged_stage(damage: Callable[[bytearray, int], None], **settings: str) -> HostStage:
    """`g` committed 0 to 11 and `simple` 7; then the batch at offset 5 of `g`'s log was damaged, and a restart."""
    stage = HostStage(**settings)
    stage.coordinate()
    for offset in range(COMMITS):
        assert error_of(stage.ask(commit(offset, metadata="x" * 3_000), 9)) is E.NONE
    assert error_of(stage.ask(commit(7, "simple"), 9)) is E.NONE
    stage.stop()
    stage.settle()
    content = stage.disk._file(LOG).content
    damage(content, batches_of(content)[5])
    stage.restart(clean=False)
    return stage


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_coordinator_is_out_of_service_and_the_others_go_on(
    damage: Callable[[bytearray, int], None],
) -> None:
    stage = damaged_stage(damage)
    stage.run(120_000)
    for group in "gj":
        assert error_of(stage.ask(commit(1, group), 9)) is E.NOT_COORDINATOR
    assert committed(stage, "simple") == 7
    assert error_of(stage.ask(commit(8, "simple"), 9)) is E.NONE
    assert [group.group_id for group in stage.ask(ListGroupsRequest()).groups] == ["simple"]
    said = [note for note in stage.notes if "is offline on this node" in note]
    assert len(said) == 1, stage.notes
    assert f"{LOG}, position " in said[0]
    assert "offset 5: " in said[0]
    assert f"--set {SKIP_DAMAGED}=true" in said[0]
    assert stage.disk.exists("/data/recovery-point-offset-checkpoint"), "checkpoints are written"
    due = stage.node.deadline()
    assert due is None or due > stage.now, "the node has nothing to do and does nothing"


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_an_operator_can_go_on_without_what_is_damaged(damage: Callable[[bytearray, int], None]) -> None:
    stage = damaged_stage(damage, **{SKIP_DAMAGED: "true"})
    stage.run()
    assert committed(stage) == COMMITS - 1
    assert any("skipped" in note for note in stage.notes)
    assert error_of(stage.ask(commit(99, "j"), 9)) is E.NONE
    stage.restart(clean=False)
    stage.run()
    assert committed(stage, "j") == 99


def test_sound_batches_without_sense_are_passed_over() -> None:
    """Somebody wrote them so, and whoever may write there must not stop the coordinator by it."""
    stage = HostStage()
    stage.coordinate()
    assert error_of(stage.ask(commit(3), 9)) is E.NONE
    partition = stage.node.replicas.get("__consumer_offsets", DAMAGED)
    assert partition is not None
    for records in (
        [Record(key=b"\0", value=b"?")],
        [Record(key=None, value=b"?")],
        [Record(key=b"\0\1", value=b"\0")],
    ):
        partition.append(stage.now, memoryview(build_batch(records)), Origin.REPLICATION)
    nonsense = build_batch([Record(key=b"k", value=b"v")])
    nonsense[HEADER_BYTES] = 0x7F  # a record longer than the batch
    set_crc(nonsense)
    partition.append(stage.now, memoryview(nonsense), Origin.REPLICATION)
    assert error_of(stage.ask(commit(4, "j"), 9)) is E.NONE
    stage.restart(clean=False)
    stage.run()
    assert (committed(stage), committed(stage, "j")) == (3, 4)
    assert any("skipped" in note for note in stage.notes)


def test_a_coordinator_that_fails_by_itself_starts_over_and_takes_nobody_along(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    faults: list[str] = []
    stage = HostStage(faults)
    stage.coordinate()
    stage.ask(commit(3), 9)
    stage.ask(commit(7, "simple"), 9)
    broken = dict((partition.index, shard) for partition, shard in stage.node.coordinators.groups.loaded())[DAMAGED]
    assert isinstance(broken, GroupShard)
    usual = GroupShard.expire

    def expire(shard: GroupShard, now: int) -> Decision:
        if shard is broken:
            raise OverflowError("a bug of ours")
        return usual(shard, now)

    monkeypatch.setattr(GroupShard, "expire", expire)
    stage.run(1_000_000)
    assert len(faults) == 1
    assert (committed(stage), committed(stage, "simple")) == (3, 7)


def test_a_part_of_the_node_that_fails_rests_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    faults: list[str] = []

    def fail(host: ShardHost, now: int) -> None:
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr(ShardHost, "_expire", fail)
    stage = HostStage(faults)
    stage.coordinate()
    stage.ask(commit(3), 9)
    stage.node.coordinators.groups._timers.set(0, stage.now)
    stage.run(200_000)
    assert 1 <= len(faults) <= 4, "about once a minute"
    assert stage.disk.exists("/data/recovery-point-offset-checkpoint"), "checkpoints are written meanwhile"
    assert committed(stage) == 3


def test_a_replay_notices_when_its_segment_is_replaced() -> None:
    stage = HostStage()
    stage.coordinate()
    stage.ask(commit(0), 9)
    partition = stage.node.replicas.get("__consumer_offsets", DAMAGED)
    assert partition is not None
    log = partition.log
    for offset in range(1, COMMITS):
        if offset % 3 == 0:
            log.roll(stage.now)
        stage.ask(commit(offset), 9)
    replay = Replay(log)
    assert replay.read(1)
    log.delete_records_before(log.bases[1])
    for file in log.maintaining(stage.now):
        file.sync()
    with pytest.raises(ReplacedError):
        replay.read(1)
    again = Replay(log)
    found = 0
    while not again.done:
        found += len(again.read(1))
    assert found == COMMITS - log.bases[0]


def test_no_flipped_bit_of_a_log_goes_unnoticed() -> None:
    """Every bit of the header but the leader epoch's, and some of the records, one at a time."""
    stage = HostStage()
    stage.coordinate()
    for offset in range(4):
        stage.ask(commit(offset), 9)
    partition = stage.node.replicas.get("__consumer_offsets", DAMAGED)
    assert partition is not None
    content = stage.disk._file(LOG).content
    positions = batches_of(content)
    sound = bytes(content)
    for at in [*range(12), *range(16, HEADER_BYTES + 12)]:
        for bit in range(8):
            content[positions[2] + at] ^= 1 << bit
            replay = Replay(partition.log)
            found = replay.read(1 << 20)
            assert len(found) == 2, "also if the batch claims offset 3: this log has no gaps"
            with pytest.raises(UnreadableError, match="offset 2: "):
                replay.read(1 << 20)
            content[:] = sound
