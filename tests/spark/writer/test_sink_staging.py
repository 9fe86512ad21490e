"""Exactly once, without Spark: whatever step the driver dies at, every record is in its topic once and in order."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ottla.client import Client
from ottla.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from ottla.protocol.records import Record, build_batch, decode_records, iter_batches
from ottla.spark.writer.publishing import Publisher, PublishFailedError
from ottla.spark.writer.staging import StagedFile, Staging, StagingRefusedError
from ottla.testing import EmbeddedBroker
from tests.harness.spark.writer.sink_faults import Crash, FaultyClient, Fuse, LostAnswers

PARTITIONS = 2
RECORDS_IN_BATCH = 3
ROWS = 42  # seven batches a partition: more than may be in flight
QUERY = "query-1"


def stage(staging: Staging, topic: str, batch_id: int, attempt: int = 0) -> list[StagedFile]:
    """Two tasks' files. Another attempt puts the rows into other places, as a replayed shuffle may."""
    rows = [b"%d/%d" % (batch_id, row) for row in range(ROWS)]
    random.Random(attempt).shuffle(rows)
    files: list[StagedFile] = []
    for task in range(2):
        encoded = []
        for partition in range(PARTITIONS):
            mine = rows[task::2][partition::PARTITIONS]
            for at in range(0, len(mine), RECORDS_IN_BATCH):
                values = mine[at : at + RECORDS_IN_BATCH]
                batch = build_batch([Record(timestamp_ms=1, value=value) for value in values])
                encoded.append((topic, partition, len(values), batch))
        staged = staging.stage(batch_id, task, encoded)
        assert staged is not None
        files.append(staged)
    return files


def publisher(broker: EmbeddedBroker, fault: Callable[[str], None] = lambda name: None) -> Publisher:
    return Publisher(lambda: FaultyClient(broker.bootstrap_servers, fault), delivery_timeout_ms=20_000)


def commit(staging: Staging, broker: EmbeddedBroker, topic: str, batch_id: int, attempt: int = 0) -> int:
    sender = publisher(broker)
    try:
        return staging.commit(batch_id, QUERY, stage(staging, topic, batch_id, attempt), sender)
    finally:
        sender.close()


def read(broker: EmbeddedBroker, topic: str) -> list[list[bytes]]:
    """Every partition's values, in order."""
    found: list[list[bytes]] = []
    with Client(broker.bootstrap_servers) as client:
        for partition in range(PARTITIONS):
            values: list[bytes] = []
            end = client.list_offsets(topic, [partition])[partition]
            offset = client.list_offsets(topic, [partition], -2)[partition]
            while offset < end:
                content = client.fetch_raw(topic, partition, offset).records
                for header, at in iter_batches(content):
                    values += [record.value or b"" for record in decode_records(content, at)]
                    offset = header.next_offset
            found.append(values)
    return found


def check_once(found: list[list[bytes]], batch_ids: range) -> None:
    everything = sorted(value for values in found for value in values)
    assert everything == sorted(b"%d/%d" % (batch_id, row) for batch_id in batch_ids for row in range(ROWS))
    for values in found:
        ids = [int(value.split(b"/")[0]) for value in values]
        assert ids == sorted(ids)


def left(staging: Staging) -> list[str]:
    root = Path(staging.directory)
    kept = {root / name for name in ("owner.json", "done.json", "lock")}
    return [str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and path not in kept]


def crashing_commit(
    staging: Staging, broker: EmbeddedBroker, topic: str, batch_id: int, attempt: int, fuse: Fuse
) -> bool:
    """Whether the commit came to its end before the fuse burnt down."""
    with pytest.MonkeyPatch.context() as patch:
        fuse.burn_files(patch)
        sender = publisher(broker, fuse.step)
        try:
            staging.commit(batch_id, QUERY, stage(staging, topic, batch_id, attempt), sender)
        except Crash:
            return False
        finally:
            sender.close()
    return True


def test_a_crash_at_any_step_leaves_each_record_once(broker: EmbeddedBroker, tmp_path: Path) -> None:
    whole = Fuse()
    broker.create_topic("count", partitions=PARTITIONS)
    commit(Staging(str(tmp_path / "count")), broker, "count", 0)
    assert crashing_commit(Staging(str(tmp_path / "count")), broker, "count", 1, 1, whole)
    assert {"before write_json", "after post", "before take", "after take"} <= set(whole.taken)
    for step in range(len(whole.taken)):
        topic = f"step-{step}"
        broker.create_topic(topic, partitions=PARTITIONS)
        staging = Staging(str(tmp_path / topic))
        commit(staging, broker, topic, 0)
        crashing_commit(staging, broker, topic, 1, 1, Fuse(step))
        commit(staging, broker, topic, 1, attempt=2)
        check_once(read(broker, topic), range(2))
        assert left(staging) == []
        shutil.rmtree(staging.directory)


@pytest.mark.parametrize("seed", range(12))
def test_crash_after_crash(broker: EmbeddedBroker, topic: str, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    broker.create_topic(topic, partitions=PARTITIONS)
    staging = Staging(str(tmp_path))
    for batch_id in range(4):
        attempt = 0
        while not crashing_commit(staging, broker, topic, batch_id, attempt, Fuse(rng.randrange(1, 60))):
            attempt += 1
    check_once(read(broker, topic), range(4))
    assert left(staging) == []


@pytest.mark.parametrize("seed", range(6))
def test_lost_connections_double_nothing(broker: EmbeddedBroker, topic: str, tmp_path: Path, seed: int) -> None:
    broker.create_topic(topic, partitions=PARTITIONS)
    staging = Staging(str(tmp_path))
    lost = LostAnswers(set(random.Random(seed).sample(range(40), 8)))
    sender = publisher(broker, lost)
    for batch_id in range(2):
        assert staging.commit(batch_id, QUERY, stage(staging, topic, batch_id), sender) == ROWS
    assert lost.count > 40
    check_once(read(broker, topic), range(2))


def test_a_batch_that_is_done_adds_nothing_again(broker: EmbeddedBroker, topic: str, tmp_path: Path) -> None:
    broker.create_topic(topic, partitions=PARTITIONS)
    staging = Staging(str(tmp_path))
    assert commit(staging, broker, topic, 0) == ROWS
    assert commit(staging, broker, topic, 1) == ROWS
    for batch_id in (1, 0):
        assert commit(staging, broker, topic, batch_id, attempt=1) == 0
    assert left(staging) == []
    check_once(read(broker, topic), range(2))


def test_an_abort_keeps_what_a_manifest_needs(broker: EmbeddedBroker, topic: str, tmp_path: Path) -> None:
    broker.create_topic(topic, partitions=PARTITIONS)
    staging = Staging(str(tmp_path))
    files = stage(staging, topic, 0)
    staging.abort(0, files)
    assert left(staging) == []
    files = stage(staging, topic, 0)
    with pytest.raises(Crash):
        staging.commit(0, QUERY, files, publisher(broker, Fuse(3).step))
    staging.abort(0, files)  # Spark aborts after a failed commit
    assert len(left(staging)) == 3
    commit(staging, broker, topic, 0, attempt=1)
    check_once(read(broker, topic), range(1))


def test_two_queries_cannot_share_a_directory(broker: EmbeddedBroker, topic: str, tmp_path: Path) -> None:
    broker.create_topic(topic, partitions=PARTITIONS)
    staging = Staging(str(tmp_path))
    commit(staging, broker, topic, 0)
    files = stage(staging, topic, 1)
    with pytest.raises(StagingRefusedError, match=r"belongs to another query \(query-1; this is query-2\)"):
        staging.commit(1, "query-2", files, publisher(broker))
    staging.abort(1, files)
    commit(staging, broker, topic, 1)
    check_once(read(broker, topic), range(2))


def test_a_staged_file_that_is_gone_or_damaged_is_named(broker: EmbeddedBroker, topic: str, tmp_path: Path) -> None:
    broker.create_topic(topic, partitions=PARTITIONS)
    staging = Staging(str(tmp_path))
    files = stage(staging, topic, 0)
    path = tmp_path / "batches" / files[0].name
    whole = bytearray(path.read_bytes())
    whole[70] ^= 1
    path.write_bytes(whole)
    with pytest.raises(StagingRefusedError, match=f"for {topic}-0 is damaged"):
        staging.commit(0, QUERY, files, publisher(broker))
    path.unlink()
    with pytest.raises(StagingRefusedError, match=files[0].name):
        staging.commit(0, QUERY, files, publisher(broker))


def test_the_log_decides_when_the_broker_has_forgotten_the_producer(tmp_path: Path, topic: str) -> None:
    with EmbeddedBroker(settings={"producer.id.expiration.ms": "1"}) as broker:
        broker.create_topic(topic, partitions=PARTITIONS)
        staging = Staging(str(tmp_path))
        commit(staging, broker, topic, 0)
        for sent in range(8, 30, 4):
            crashing_commit(staging, broker, topic, 1, 1, Fuse(sent))
            broker.restart()
            assert forgotten(broker, topic)
        commit(staging, broker, topic, 1)
        check_once(read(broker, topic), range(2))


def forgotten(broker: EmbeddedBroker, topic: str) -> bool:
    with Client(broker.bootstrap_servers) as client:
        request = DescribeProducersRequest([TopicRequest(topic, list(range(PARTITIONS)))])
        (answer,) = client.send(request).topics
    return not any(part.active_producers for part in answer.partitions)


@pytest.mark.parametrize("steps", [3, 9, 14, 22])
def test_a_broker_that_starts_again_in_the_middle(tmp_path: Path, topic: str, steps: int) -> None:
    """The records are of 1970: at its start a broker forgets producers whose last record is that old."""
    with EmbeddedBroker() as broker:
        broker.create_topic(topic, partitions=PARTITIONS)
        staging = Staging(str(tmp_path))
        commit(staging, broker, topic, 0)
        count = 0

        def restart(name: str) -> None:
            nonlocal count
            count += 1
            if count == steps:
                broker.restart()

        sender = publisher(broker, restart)
        assert staging.commit(1, QUERY, stage(staging, topic, 1), sender) == ROWS
        sender.close()
        commit(staging, broker, topic, 2)
        check_once(read(broker, topic), range(3))


def test_new_numbers_when_the_broker_has_lost_acknowledged_records(
    broker: EmbeddedBroker, topic: str, tmp_path: Path
) -> None:
    broker.create_topic(topic, partitions=PARTITIONS)
    staging = Staging(str(tmp_path))
    commit(staging, broker, topic, 0)
    path = tmp_path / "done.json"
    done = json.loads(path.read_text())
    done["numbers"][f"{topic}-0"][2] += 1000  # as if partition 0 had lost its last thousand
    path.write_text(json.dumps(done))
    assert not crashing_commit(staging, broker, topic, 1, 0, Fuse(24))
    commit(staging, broker, topic, 1)
    commit(staging, broker, topic, 2)
    check_once(read(broker, topic), range(3))
    numbers = json.loads(path.read_text())["numbers"]
    assert numbers[f"{topic}-0"][1] == numbers[f"{topic}-1"][1] + 1


def test_a_topic_made_anew_in_the_middle_gets_the_whole_batch(
    broker: EmbeddedBroker, topic: str, tmp_path: Path
) -> None:
    broker.create_topic(topic, partitions=PARTITIONS)
    staging = Staging(str(tmp_path))
    commit(staging, broker, topic, 0)
    assert not crashing_commit(staging, broker, topic, 1, 0, Fuse(16))
    broker.delete_topic(topic)
    broker.create_topic(topic, partitions=PARTITIONS)
    commit(staging, broker, topic, 1)
    check_once(read(broker, topic), range(1, 2))


def test_a_second_writer_of_the_same_query_is_told(broker: EmbeddedBroker, topic: str, tmp_path: Path) -> None:
    """A copied staging directory is another query's twin; the broker knows the newer epoch and fences the older."""
    broker.create_topic(topic, partitions=PARTITIONS)
    staging, twin = Staging(str(tmp_path / "one")), Staging(str(tmp_path / "two"))
    commit(staging, broker, topic, 0)
    shutil.copytree(staging.directory, twin.directory)
    path = Path(twin.directory) / "done.json"
    done = json.loads(path.read_text())
    done["numbers"] = {place: [row[0], row[1] + 1, 0] for place, row in done["numbers"].items()}
    path.write_text(json.dumps(done))
    commit(twin, broker, topic, 1)
    with pytest.raises(PublishFailedError, match="is this query running twice"):
        commit(staging, broker, topic, 1)
