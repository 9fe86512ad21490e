"""Flipped bits in any file of a data directory: the node starts, or says in a sentence whose directory it is."""

import copy
import random
from typing import Any

import pytest
from test_shard_host import commit

from ottla.broker.upkeep.identity import StartRefusedError
from ottla.protocol.records.batch import HEADER_BYTES, iter_batches
from ottla.protocol.records.errors import CorruptRecordsError
from ottla.protocol.records.record import Record, build_batch
from ottla.sim.kernel.disk import Disk
from tests.harness.groups.host_stage import HostStage

SEEDS = 20
TOPICS = ("t", "compacted", "long")


def lived_in() -> HostStage:
    """Topics with some segments each, one of them compacted, one idempotent; groups; checkpoints."""
    stage = HostStage()
    stage.coordinate()
    stage.create("compacted", 1, {"cleanup.policy": "compact"})
    stage.create("long", 1, {"index.interval.bytes": "512"})
    for name in TOPICS:
        partition = stage.node.replicas.get(name, 0)
        assert partition is not None
        for i in range(40):
            known: dict[str, Any] = (
                {"producer_id": 5, "producer_epoch": 0, "base_sequence": i} if name == "long" else {}
            )
            record = Record(timestamp_ms=stage.now + i, key=b"k%d" % (i % 5), value=b"v" * 50)
            partition.append(stage.now, memoryview(build_batch([record], **known)))
            if i % 15 == 14:
                partition.log.roll(stage.now)
    for offset in range(20):
        stage.ask(commit(offset, metadata="x" * 300), 9)
    stage.run(100_000)
    return stage


def damage(disk: Disk, rng: random.Random) -> str:
    """Flip some bits of one file, in logs mostly in headers, and sometimes cut it. What was done."""
    name = rng.choice(sorted(disk.files()))
    content = disk._file(name).content
    done = [name]
    starts: list[int] = []
    if name.endswith(".log"):
        try:
            starts = [position for _, position in iter_batches(bytes(content))]
        except CorruptRecordsError:
            starts = [0]
    for _ in range(rng.choice((1, 1, 1, 3)) if content else 0):
        at = (
            rng.choice(starts) + rng.randrange(HEADER_BYTES)
            if starts and rng.random() < 0.7
            else rng.randrange(1 << 20)
        )
        at %= len(content)
        bit = rng.randrange(8)
        content[at] ^= 1 << bit
        done.append(f"{at}.{bit}")
    if rng.random() < 0.1:
        del content[rng.randrange(len(content) + 1) :]
    return " ".join(done)


@pytest.mark.parametrize("how", ["a clean stop", "a kill", "a power cut"])
def test_a_node_with_flipped_bits_starts_and_serves(how: str) -> None:
    stage = lived_in()
    if how == "a clean stop":
        stage.stop()
        stage.settle()
    disk, store = stage.disk, stage.store
    for seed in range(SEEDS):
        rng = random.Random(f"{how}/{seed}")
        stage.disk, stage.store = disk.clone(rng), copy.deepcopy(store)
        done = damage(stage.disk, rng)
        try:
            stage.start(same_boot=how != "a power cut")
            stage.run(300_000)
            for name in TOPICS:
                partition = stage.node.replicas.get(name, 0)
                if partition is not None and partition.log.failed is None:
                    record = Record(timestamp_ms=stage.now, key=b"k", value=b"v")
                    partition.append(stage.now, memoryview(build_batch([record])))
            stage.stop()
        except StartRefusedError:
            assert "meta.properties" in done
        except Exception as error:
            error.add_note(f"seed {seed}: {done}")
            raise
