"""The worker's reading against a node, without Spark: the rows that librdkafka reads, whatever breaks on the way."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from ottla.client import Client
from ottla.client.client import EARLIEST
from ottla.spark.reader import reading
from ottla.spark.reader.losses import RecordsLostError
from ottla.spark.reader.plan import Range
from ottla.spark.reader.reading import ReadFailedError
from ottla.testing import EmbeddedBroker
from tests.harness.spark.reader.source_stage import options_of, produce, rows_by_confluent, rows_by_source, rows_of
from tests.harness.waiting import soon

NOW_MS = int(time.time() * 1000)


def mixed(count: int, **more: Any) -> Iterator[dict[str, Any]]:
    """Null and empty keys and values, headers twice and null, long and short ones, several partitions."""
    keys = [None, b"", b"k", "ключ".encode()]
    values = [None, b"", b"v" * 10, b"long" * 300]
    headers = [None, [], [("h", b"1"), ("h", None), ("", b"")], [("ü", b"x" * 200)]]
    for i in range(count):
        yield {
            "key": keys[i % 4],
            "value": values[i // 4 % 4],
            "headers": headers[i // 16 % 4],
            "partition": i % 3,
            "timestamp": NOW_MS + i,  # older ones, retention would take
            **more,
        }


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_the_rows_that_librdkafka_reads(broker: EmbeddedBroker, topic: str, codec: str) -> None:
    broker.create_topic(topic, partitions=3)
    produce(broker.bootstrap_servers, topic, mixed(700), **{"compression.type": codec, "batch.num.messages": 60})
    rows = rows_by_source(options_of(broker.bootstrap_servers, topic))
    assert len(rows) == 700
    assert rows == rows_by_confluent(broker.bootstrap_servers, topic, 3)


def test_log_append_time(broker: EmbeddedBroker, topic: str) -> None:
    broker.create_topic(topic, partitions=3, configs={"message.timestamp.type": "LogAppendTime"})
    produce(broker.bootstrap_servers, topic, mixed(20))
    rows = rows_by_source(options_of(broker.bootstrap_servers, topic))
    assert {row[5] for row in rows} == {1}
    assert rows == rows_by_confluent(broker.bootstrap_servers, topic, 3)


def test_compaction_leaves_gaps() -> None:
    settings = {"log.cleaner.backoff.ms": "50"}
    configs = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
    with EmbeddedBroker(settings=settings) as broker:
        topic = broker.create_topic(configs=configs)
        for part in range(3):  # segments of their own; the last one is not compacted
            records = (
                {"key": b"%d" % (i % 7), "value": b"%d" % i, "timestamp": NOW_MS + 150 * part}
                for i in range(part * 50, part * 50 + 50)
            )
            produce(broker.bootstrap_servers, topic, records, **{"batch.num.messages": 9})
        options = options_of(broker.bootstrap_servers, topic)
        soon(lambda: len(rows_by_source(options)) < 100, "compaction")
        rows = rows_by_source(options)
        assert rows == rows_by_confluent(broker.bootstrap_servers, topic)
        gap = next(i for i in range(150) if i not in {row[1] for row in rows})
        assert rows_by_source(options, [Range(topic, 0, gap, gap + 1)]) == []


def test_any_cut_of_the_offsets_gives_each_row_once(broker: EmbeddedBroker, topic: str) -> None:
    broker.create_topic(topic, partitions=3)
    produce(broker.bootstrap_servers, topic, mixed(300), **{"batch.num.messages": 7})
    options = options_of(
        broker.bootstrap_servers, topic, kafka__fetch__max__bytes="3000", kafka__max__partition__fetch__bytes="900"
    )
    whole = rows_by_source(options)
    assert len(whole) == 300
    cuts = [0, 1, 6, 7, 8, 20, 99, 100]
    ranges = [Range(topic, p, a, b) for p in range(3) for a, b in itertools.pairwise(cuts)]
    assert rows_by_source(options, ranges) == whole
    given = [row[:2] for batch in reading.read(ranges[::2], options) for row in rows_of(batch)]
    for p in range(3):
        assert [row for row in given if row[0] == p] == sorted(row for row in given if row[0] == p)
    assert [row[:2] for row in rows_by_source(options, [Range(topic, 1, 5, 8)])] == [(1, 5), (1, 6), (1, 7)]


def test_a_broker_that_restarts_while_it_is_read(broker: EmbeddedBroker, topic: str) -> None:
    """No row is lost and none comes twice; a task that was given up leaves nothing behind for the next."""
    broker.create_topic(topic, partitions=3)
    produce(broker.bootstrap_servers, topic, mixed(3000), **{"batch.num.messages": 20})
    options = options_of(broker.bootstrap_servers, topic, kafka__fetch__max__bytes="60000")
    ranges = [Range(topic, p, 0, 1000) for p in range(3)]
    batches = reading.read(ranges, options)
    rows = rows_of(next(batches))
    broker.restart()
    for batch in batches:
        rows += rows_of(batch)
    assert sorted(rows) == rows_by_source(options, ranges)
    given_up = reading.read(ranges, options)
    next(given_up)
    given_up.close()
    assert len(rows_by_source(options, ranges)) == 3000


def test_what_cannot_be_read_in_time_is_said(broker: EmbeddedBroker, topic: str) -> None:
    broker.create_topic(topic)
    produce(broker.bootstrap_servers, topic, [{"value": b"x"}])
    given = {"kafkaConsumer__pollTimeoutMs": "300", "kafka__fetch__max__wait__ms": "50"}
    with pytest.raises(
        RecordsLostError, match=rf"within 300 ms: {topic}-0 ends at 1, and offsets 1 to 5 were to be read"
    ):
        rows_by_source(options_of(broker.bootstrap_servers, topic, **given), [Range(topic, 0, 0, 5)])
    loose = options_of(broker.bootstrap_servers, topic, failOnDataLoss="false", **given)
    assert len(rows_by_source(loose, [Range(topic, 0, 0, 5)])) == 1
    nowhere = options_of("127.0.0.1:1", topic, **given)
    with pytest.raises(ReadFailedError, match=r"Nothing more could be read within 300 ms: No broker can be reached"):
        rows_by_source(nowhere, [Range(topic, 0, 0, 5)])


def test_what_retention_took(broker: EmbeddedBroker, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    broker.create_topic(topic)
    produce(broker.bootstrap_servers, topic, [{"value": b"%d" % i} for i in range(10)])
    delete_records(broker, topic, 4)
    ranges = [Range(topic, 0, 2, 10)]
    with pytest.raises(RecordsLostError, match=f"Offsets 2 to 4 of {topic}-0 are gone: it begins at 4 now; set option"):
        rows_by_source(options_of(broker.bootstrap_servers, topic), ranges)
    loose = options_of(broker.bootstrap_servers, topic, failOnDataLoss="false")
    assert [row[1] for row in rows_by_source(loose, ranges)] == [4, 5, 6, 7, 8, 9]
    assert f"Offsets 2 to 4 of {topic}-0 are gone" in caplog.text
    assert rows_by_source(loose, [Range(topic, 0, 0, 3)]) == []
    with pytest.raises(RecordsLostError, match=f"Offsets 20 to 30 of {topic}-0 are gone: it ends at 10 now"):
        rows_by_source(options_of(broker.bootstrap_servers, topic), [Range(topic, 0, 20, 30)])


@pytest.mark.parametrize(
    ("made_anew", "fails", "sentence"),
    [
        (False, True, "{}-0 is gone, and offsets"),
        (True, True, "The topic {} was deleted and created again"),
        (True, False, ""),
    ],
)
def test_a_topic_that_goes_while_it_is_read(
    broker: EmbeddedBroker, topic: str, made_anew: bool, fails: bool, sentence: str
) -> None:
    """What came from a topic of that name later is not taken for the rest of it."""
    small = {"kafka__fetch__max__bytes": "5000", "kafka__max__partition__fetch__bytes": "5000"}
    broker.create_topic(topic)
    produce(broker.bootstrap_servers, topic, [{"value": b"x" * 100} for _ in range(1000)], **{"batch.num.messages": 9})
    batches = reading.read(
        [Range(topic, 0, 0, 1000)], options_of(broker.bootstrap_servers, topic, failOnDataLoss=str(fails), **small)
    )
    rows = rows_of(next(batches))
    broker.delete_topic(topic)
    if made_anew:
        broker.create_topic(topic)
        produce(broker.bootstrap_servers, topic, [{"value": b"new" * 30} for _ in range(1000)])
    if fails:
        with pytest.raises(RecordsLostError, match=sentence.format(topic)):
            list(batches)
        return
    rows += [row for batch in batches for row in rows_of(batch)]
    assert 0 < len(rows) < 1000
    assert all(row[3] == b"x" * 100 for row in rows)


def test_the_connection_is_kept_between_tasks(broker: EmbeddedBroker, topic: str) -> None:
    broker.create_topic(topic)
    produce(broker.bootstrap_servers, topic, [{"value": b"x"}])
    options = options_of(broker.bootstrap_servers, topic)
    rows_by_source(options)
    client = reading.client_of(options.client)
    before = client.leader(topic, 0)
    rows_by_source(options)
    assert reading.client_of(options.client) is client
    assert client.leader(topic, 0) is before


def test_a_forked_process_does_not_speak_on_its_parents_connection(broker: EmbeddedBroker, topic: str) -> None:
    """Spark's workers are forked from a daemon, which may have read before."""
    broker.create_topic(topic)
    produce(broker.bootstrap_servers, topic, [{"value": b"%d" % i} for i in range(10)])
    options = options_of(broker.bootstrap_servers, topic)
    ranges = [Range(topic, 0, 0, 10)]
    rows = rows_by_source(options, ranges)
    inherited = reading.client_of(options.client)
    child = os.fork()
    if child == 0:
        fresh = reading.client_of(options.client) is not inherited
        os._exit(0 if fresh and rows_by_source(options, ranges) == rows else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert rows_by_source(options, ranges) == rows
    assert reading.client_of(options.client) is inherited


def test_more_partitions_than_one_request_holds(
    broker: EmbeddedBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "PARTITIONS_MAX", 2)
    broker.create_topic(topic, partitions=7)
    produce(broker.bootstrap_servers, topic, [{"value": b"%d" % i, "partition": i % 7} for i in range(70)])
    rows = rows_by_source(options_of(broker.bootstrap_servers, topic, kafka__fetch__max__bytes="100"))
    assert [row[:2] for row in rows] == [(p, i) for p in range(7) for i in range(10)]


def delete_records(broker: EmbeddedBroker, topic: str, until: int) -> None:
    from ottla.protocol.messages.delete_records import (
        DeleteRecordsPartition,
        DeleteRecordsRequest,
        DeleteRecordsTopic,
    )

    partition = DeleteRecordsPartition(0, until)
    with Client(broker.bootstrap_servers) as client:
        client.send(DeleteRecordsRequest([DeleteRecordsTopic(topic, [partition])], 30_000))
        assert client.list_offsets(topic, [0], EARLIEST) == {0: until}
