"""Each micro-batch a transaction, without Spark: whatever step the driver dies at, readers of committed records see it
whole or not at all, and in the end once."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import confluent_kafka
import pytest

from ottla.client import Client
from ottla.client.client import LATEST
from ottla.client.transactions import list_transactions
from ottla.spark.codec.decode import decode
from ottla.spark.writer.publishing import Publisher, PublishFailedError
from ottla.spark.writer.staging import Staging, StagingRefusedError
from ottla.spark.writer.transaction import Transactions
from ottla.testing import EmbeddedBroker
from tests.harness.spark.writer.sink_faults import Crash, Fuse, LostAnswers

from .test_sink_staging import PARTITIONS, QUERY, ROWS, check_once, commit, crashing_commit, left, publisher, stage

WAIT_S = 30.0
KEPT = {"retention.ms": "-1"}
"""The records are of 1970."""
COMMITTED = 1


@pytest.fixture
def query(topic: str) -> str:
    """A query of this test's own: transactional ids are the broker's."""
    return f"{QUERY}-{topic}"


def write(
    staging: Staging,
    sender: Publisher,
    topic: str,
    query: str,
    batch_id: int,
    attempt: int = 0,
    timeout_ms: int = 60_000,
) -> int:
    try:
        files = stage(staging, topic, batch_id, attempt)
        return staging.commit(batch_id, query, files, sender, Transactions(sender, query, timeout_ms))
    finally:
        sender.close()


def crashing_write(
    staging: Staging, broker: EmbeddedBroker, topic: str, query: str, batch_id: int, attempt: int, fuse: Fuse
) -> bool:
    """Whether the commit came to its end before the fuse burnt down."""
    with pytest.MonkeyPatch.context() as patch:
        fuse.burn_files(patch)
        try:
            write(staging, publisher(broker, fuse.step), topic, query, batch_id, attempt)
        except Crash:
            return False
    return True


def read_committed(broker: EmbeddedBroker, topic: str) -> list[list[bytes]]:
    """What a reader of committed records sees now, by partition."""
    found: list[list[bytes]] = []
    with Client(broker.bootstrap_servers) as client:
        ends = client.list_offsets(topic, range(PARTITIONS), LATEST, isolation_level=COMMITTED)
        for partition, end in ends.items():
            values: list[bytes] = []
            at = 0
            while at < end:
                got = client.fetch_raw(topic, partition, at, isolation_level=COMMITTED)
                rows = decode(got.records, topic=topic, partition=partition, first=at, until=end, aborted=got.aborted)
                values += [value for batch in rows.batches for value in batch.column("value").to_pylist()]
                at = rows.next_offset
            found.append(values)
    return found


def by_batch(found: list[list[bytes]]) -> dict[int, int]:
    """How many records of each micro-batch are there."""
    counts: dict[int, int] = {}
    for value in (value for values in found for value in values):
        batch_id = int(value.split(b"/")[0])
        counts[batch_id] = counts.get(batch_id, 0) + 1
    return counts


def test_a_crash_at_any_step_shows_all_or_nothing(broker: EmbeddedBroker, topic: str, tmp_path: Path) -> None:
    whole = Fuse()
    broker.create_topic(topic, partitions=PARTITIONS, configs=KEPT)
    assert crashing_write(Staging(str(tmp_path / "count")), broker, topic, f"count-{topic}", 0, 0, whole)
    assert {"before InitProducerId", "after AddPartitionsToTxn", "after TxnOffsetCommit", "after EndTxn"} <= set(
        whole.taken
    )
    seen: list[dict[int, int]] = []
    for step in range(len(whole.taken)):
        name = f"{topic}-{step}"
        broker.create_topic(name, partitions=PARTITIONS, configs=KEPT)
        staging = Staging(str(tmp_path / name))
        crashing_write(staging, broker, name, name, 0, 0, Fuse(step))
        seen.append(by_batch(read_committed(broker, name)))
        write(staging, publisher(broker), name, name, 0, attempt=1)
        check_once(read_committed(broker, name), range(1))
        assert left(staging) == []
        shutil.rmtree(staging.directory)
    assert all(counts in ({}, {0: ROWS}) for counts in seen), seen
    assert {} in seen
    assert {0: ROWS} in seen


@pytest.mark.parametrize("seed", range(6))
def test_crash_after_crash(broker: EmbeddedBroker, topic: str, query: str, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    broker.create_topic(topic, partitions=PARTITIONS, configs=KEPT)
    staging = Staging(str(tmp_path))
    for batch_id in range(4):
        attempt = 0
        while not crashing_write(staging, broker, topic, query, batch_id, attempt, Fuse(rng.randrange(1, 70))):
            attempt += 1
    check_once(read_committed(broker, topic), range(4))
    assert left(staging) == []


@pytest.mark.parametrize("seed", range(4))
def test_lost_answers_double_nothing(broker: EmbeddedBroker, topic: str, query: str, tmp_path: Path, seed: int) -> None:
    broker.create_topic(topic, partitions=PARTITIONS, configs=KEPT)
    staging = Staging(str(tmp_path))
    lost = LostAnswers(set(random.Random(seed).sample(range(60), 10)))
    for batch_id in range(3):
        write(staging, publisher(broker, lost), topic, query, batch_id)
    assert lost.count > 60
    check_once(read_committed(broker, topic), range(3))


@pytest.mark.parametrize("steps", [3, 9, 14, 22, 40])
def test_a_broker_that_starts_again_in_the_middle(tmp_path: Path, topic: str, query: str, steps: int) -> None:
    """The records are of 1970: only the open transaction keeps the broker from forgetting their producer."""
    with EmbeddedBroker(settings={"producer.id.expiration.ms": "1"}) as broker:
        broker.create_topic(topic, partitions=PARTITIONS, configs=KEPT)
        staging = Staging(str(tmp_path))
        write(staging, publisher(broker), topic, query, 0)
        count = 0

        def restart(name: str) -> None:
            nonlocal count
            count += 1
            if count == steps:
                broker.restart()

        assert write(staging, publisher(broker, restart), topic, query, 1) == ROWS
        assert count >= steps
        write(staging, publisher(broker), topic, query, 2)
        check_once(read_committed(broker, topic), range(3))


def test_the_cluster_knows_what_the_directory_lost(
    broker: EmbeddedBroker, topic: str, query: str, tmp_path: Path
) -> None:
    """The transaction was committed and nothing was written down: the micro-batch is run again, and adds nothing."""
    broker.create_topic(topic, partitions=PARTITIONS, configs=KEPT)
    staging = Staging(str(tmp_path))
    for batch_id in range(2):
        assert write(staging, publisher(broker), topic, query, batch_id) == ROWS
    shutil.rmtree(tmp_path)
    assert write(staging, publisher(broker), topic, query, 1, attempt=1) == 0
    check_once(read_committed(broker, topic), range(2))


def test_a_failed_commit_lets_readers_go_on(broker: EmbeddedBroker, topic: str, query: str, tmp_path: Path) -> None:
    broker.create_topic(topic, partitions=PARTITIONS, configs=KEPT)
    staging = Staging(str(tmp_path))
    files = stage(staging, topic, 0)
    path = tmp_path / "batches" / files[1].name
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    sender = publisher(broker)
    with pytest.raises(StagingRefusedError, match="is damaged"):
        staging.commit(0, query, files, sender, Transactions(sender, query, 60_000))
    with Client(broker.bootstrap_servers) as client:
        states = {each.name: each.state for each in list_transactions(client)}
    assert states[f"ottla-sink-{query}"] in ("PrepareAbort", "CompleteAbort")
    sender.close()
    write(staging, publisher(broker), topic, query, 0)
    check_once(read_committed(broker, topic), range(1))


def test_a_second_driver_ends_the_first_ones_transaction(
    broker: EmbeddedBroker, topic: str, query: str, tmp_path: Path
) -> None:
    """Two copies of a query: the numbers in the cluster keep them apart, whatever their directories say."""
    broker.create_topic(topic, partitions=PARTITIONS, configs=KEPT)
    one, two = Staging(str(tmp_path / "one")), Staging(str(tmp_path / "two"))

    def other(name: str) -> None:
        if name == "before TxnOffsetCommit" and not (tmp_path / "two").exists():
            assert write(two, publisher(broker), topic, query, 0, attempt=1) == ROWS

    with pytest.raises(PublishFailedError, match="ended by another program: this query is running twice"):
        write(one, publisher(broker, other), topic, query, 0)
    assert write(one, publisher(broker), topic, query, 0) == 0
    check_once(read_committed(broker, topic), range(1))


def test_a_query_may_begin_with_transactions_later_and_not_stop(
    broker: EmbeddedBroker, topic: str, query: str, tmp_path: Path
) -> None:
    broker.create_topic(topic, partitions=PARTITIONS, configs=KEPT)
    staging = Staging(str(tmp_path))
    commit(staging, broker, topic, 0)
    assert not crashing_commit(staging, broker, topic, 1, 1, Fuse(12))  # its manifest is finished first
    assert write(staging, publisher(broker), topic, QUERY, 1, attempt=2) > 0
    assert write(staging, publisher(broker), topic, QUERY, 2) == ROWS
    check_once(read_committed(broker, topic), range(3))
    with pytest.raises(StagingRefusedError, match="has written transactions"):
        commit(staging, broker, topic, 3)


@pytest.mark.parametrize(
    ("timeout_ms", "sentence"), [(86_400_000, r"'kafka.transaction.timeout.ms' is 86400000, more than the cluster's")]
)
def test_a_timeout_that_the_cluster_refuses(
    broker: EmbeddedBroker, topic: str, query: str, tmp_path: Path, timeout_ms: int, sentence: str
) -> None:
    broker.create_topic(topic, partitions=PARTITIONS, configs=KEPT)
    with pytest.raises(PublishFailedError, match=sentence):
        write(Staging(str(tmp_path)), publisher(broker), topic, query, 0, timeout_ms=timeout_ms)


def test_librdkafka_sees_micro_batches_whole(broker: EmbeddedBroker, topic: str, query: str, tmp_path: Path) -> None:
    """While micro-batches come, a consumer that stands at the ends of all partitions has seen no part of one."""
    broker.create_topic(topic, partitions=PARTITIONS, configs=KEPT)
    staging = Staging(str(tmp_path))
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": query, "enable.auto.commit": False}
    consumer = confluent_kafka.Consumer({**settings, "isolation.level": "read_committed", "log_level": 0})
    consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    seen: list[bytes] = []

    def look(name: str) -> None:
        """Between any two steps of the driver."""
        seen.extend(message.value() or b"" for message in consumer.consume(1000, 0.01))
        assert name == "after EndTxn" or by_batch([seen]).keys() <= {0}

    write(staging, publisher(broker), topic, query, 0)
    with pytest.raises(Crash):
        write(staging, publisher(broker, Fuse(20).step), topic, query, 1)
    write(staging, publisher(broker, look), topic, query, 1, attempt=1)
    while len(seen) < 2 * ROWS:
        (message,) = consumer.consume(1, WAIT_S)
        seen.append(message.value() or b"")
    consumer.close()
    assert by_batch([seen]) == {0: ROWS, 1: ROWS}
