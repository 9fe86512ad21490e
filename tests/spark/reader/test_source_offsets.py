"""The driver's side against a node, without Spark: where batches and micro-batches begin and end, and what is lost."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, ReadMinRows

from ottla.client import ConnectionClosedError
from ottla.spark.format import OttlaSource
from ottla.spark.platform.client_properties import WrongOptionError
from ottla.spark.reader.losses import RecordsLostError
from ottla.spark.reader.offsets import Cluster
from ottla.spark.reader.options import Offsets, offsets_as_dict, offsets_from
from ottla.spark.reader.plan import TaskRanges
from ottla.spark.reader.source import StreamReader
from ottla.testing import EmbeddedBroker
from tests.harness.spark.reader.source_stage import options_of, produce, rows_of
from tests.harness.waiting import soon
from tests.spark.reader.test_source_reading import delete_records

ALL = ReadAllAvailable()


def filled(broker: EmbeddedBroker, topic: str, *counts: int) -> str:
    """A topic with as many records in each partition; record i is of i seconds."""
    broker.create_topic(topic, partitions=len(counts))
    add(broker, topic, *counts)
    return topic


def add(broker: EmbeddedBroker, topic: str, *counts: int) -> None:
    records = [
        {"value": b"%d" % i, "partition": partition, "timestamp": 1000 * (i + 1)}
        for partition, count in enumerate(counts)
        for i in range(count)
    ]
    produce(broker.bootstrap_servers, topic, records)


def planned(broker: EmbeddedBroker, topic: str, **given: str) -> dict[int, tuple[int, int]]:
    ranges = Cluster(options_of(broker.bootstrap_servers, topic, **given)).batch_ranges()
    return {each.partition: (each.first, each.until) for each in ranges}


def stream(broker: EmbeddedBroker, topic: str | None, **given: str) -> StreamReader:
    options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "fetchOffset.retryIntervalMs": "10"}
    options |= {"subscribe": topic} if topic is not None else {}
    options |= {name.replace("__", "."): value for name, value in given.items()}
    source = OttlaSource(options)
    reader = source.streamReader(source.schema())
    assert isinstance(reader, StreamReader)
    return reader


def step(reader: StreamReader, start: dict[str, Any], limit: ReadLimit = ALL) -> dict[str, Any]:
    """As Spark does it: through JSON."""
    return json.loads(json.dumps(reader.latestOffset(json.loads(json.dumps(start)), limit)))


def values(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[int, int]]:
    """(partition, offset) of what a micro-batch reads."""
    found = []
    for share in reader.partitions(start, end):
        assert isinstance(share, TaskRanges)
        found += [row[:2] for batch in reader.read(share) for row in rows_of(batch)]
    return sorted(found)


# ---- batches -------------------------------------------------------------------------------------------------------


def test_a_batch_between_offsets(broker: EmbeddedBroker, topic: str) -> None:
    filled(broker, topic, 10, 5)
    assert planned(broker, topic) == {0: (0, 10), 1: (0, 5)}
    starts, ends = {topic: {"0": 3, "1": -2}}, {topic: {"0": 7, "1": -1}}
    given = {"startingOffsets": json.dumps(starts), "endingOffsets": json.dumps(ends)}
    assert planned(broker, topic, **given) == {0: (3, 7), 1: (0, 5)}


def test_a_batch_between_times(broker: EmbeddedBroker, topic: str) -> None:
    filled(broker, topic, 10, 5)
    assert planned(broker, topic, startingTimestamp="2500", endingTimestamp="5000") == {0: (2, 4), 1: (2, 4)}
    assert planned(broker, topic, startingTimestamp="2500", endingTimestamp="8000") == {0: (2, 7), 1: (2, 5)}
    times = json.dumps({topic: {"0": 9000, "1": 1000}})
    assert planned(broker, topic, startingOffsetsByTimestamp=times) == {0: (8, 10), 1: (0, 5)}
    with pytest.raises(
        WrongOptionError, match=rf"No record of {topic}-1 is of 9000 ms or later; set option 'startingOff"
    ):
        planned(broker, topic, startingTimestamp="9000")
    latest = planned(broker, topic, startingTimestamp="9000", startingOffsetsByTimestampStrategy="latest")
    assert latest == {0: (8, 10), 1: (5, 5)}
    with pytest.raises(WrongOptionError, match=rf"The starting offset 8 of {topic}-0 is behind its ending offset 4"):
        planned(broker, topic, startingOffsetsByTimestamp=times, endingTimestamp="5000")


def test_a_batch_of_what_is_assigned_or_matches(broker: EmbeddedBroker, topic: str) -> None:
    filled(broker, f"{topic}-a", 1, 2)
    filled(broker, f"{topic}-b", 3)
    filled(broker, f"x{topic}-b", 3)
    options = {"kafka.bootstrap.servers": broker.bootstrap_servers}
    for given, expected in (
        ({"subscribePattern": f"{topic}-.*"}, [(f"{topic}-a", 0, 1), (f"{topic}-a", 1, 2), (f"{topic}-b", 0, 3)]),
        ({"assign": json.dumps({f"{topic}-a": [1]})}, [(f"{topic}-a", 1, 2)]),
        ({"subscribe": f"{topic}-b,{topic}-a", "endingOffsets": "latest"}, None),
    ):
        source = OttlaSource(options | given)
        (share, *more) = source.reader(source.schema()).partitions()
        ranges = [each for one in (share, *more) for each in one.ranges]
        assert expected in (None, sorted((each.topic, each.partition, each.until) for each in ranges))
        assert sum(each.until for each in ranges) == (6 if expected is None else sum(row[2] for row in expected))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"subscribe": "not-there"}, "Topic 'not-there' does not exist at 127.0.0.1:"),
        ({"subscribe": "not-there,nor-here"}, "Topics 'nor-here', 'not-there' do not exist"),
        ({"startingOffsets": '{"T":{"0":1}}'}, "Option 'startingOffsets' must name every partition .* T-1 is missing"),
        ({"endingOffsets": '{"T":{"0":1,"1":1,"2":1}}'}, "Option 'endingOffsets' names what is not read: T-2"),
        ({"startingOffsetsByTimestamp": '{"T":{"0":1}}'}, "'startingOffsetsByTimestamp' must name every partition"),
        ({"subscribe": None, "assign": '{"T":[0,7]}'}, "Option 'assign' names what does not exist: T-7"),
    ],
)
def test_what_a_batch_refuses(broker: EmbeddedBroker, topic: str, given: dict[str, str | None], sentence: str) -> None:
    filled(broker, topic, 2, 2)
    options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "fetchOffset.retryIntervalMs": "1"}
    options |= {"subscribe": topic} | {name: value and value.replace("T", topic) for name, value in given.items()}
    source = OttlaSource({name: value for name, value in options.items() if value is not None})
    with pytest.raises(WrongOptionError, match=sentence.replace("T-", f"{topic}-")):
        source.reader(source.schema()).partitions()


def test_a_batch_of_what_is_not_there_any_more(broker: EmbeddedBroker, topic: str) -> None:
    filled(broker, topic, 10)
    delete_records(broker, topic, 4)
    assert planned(broker, topic) == {0: (4, 10)}
    early, late = json.dumps({topic: {"0": 2}}), json.dumps({topic: {"0": 30}})
    with pytest.raises(RecordsLostError, match=f"Offsets 2 to 10 of {topic}-0 were asked for, but it begins at 4; set"):
        planned(broker, topic, startingOffsets=early)
    with pytest.raises(RecordsLostError, match=f"Offsets 4 to 30 of {topic}-0 were asked for, but it ends at 10"):
        planned(broker, topic, endingOffsets=late)
    loose = {"startingOffsets": early, "endingOffsets": late, "failOnDataLoss": "false"}
    assert planned(broker, topic, **loose) == {0: (4, 10)}


def test_a_schema_of_ones_own_is_refused() -> None:
    source = OttlaSource({"kafka.bootstrap.servers": "h:1", "subscribe": "t"})
    other = OttlaSource({"kafka.bootstrap.servers": "h:1", "subscribe": "t", "includeHeaders": "true"})
    with pytest.raises(WrongOptionError, match="The columns of this source are fixed"):
        source.reader(other.schema())


def test_nobody_there_is_said(topic: str) -> None:
    with pytest.raises(ConnectionClosedError, match=r"No broker can be reached at 127.0.0.1:1"):
        Cluster(options_of("127.0.0.1:1", topic, fetchOffset__retryIntervalMs="1")).batch_ranges()


# ---- streams -------------------------------------------------------------------------------------------------------


def test_a_stream_from_its_first_offset_on(broker: EmbeddedBroker, topic: str) -> None:
    filled(broker, topic, 10, 5)
    reader = stream(broker, topic, startingOffsets="earliest")
    reader = pickle.loads(pickle.dumps(reader))
    start = reader.initialOffset()
    assert start == {topic: {"0": 0, "1": 0}}
    assert reader.reportLatestOffset() is None
    end = step(reader, start)
    assert end == reader.reportLatestOffset() == {topic: {"0": 10, "1": 5}}
    assert len(values(reader, start, end)) == 15
    assert json.dumps(step(reader, end)) == json.dumps(end)
    assert values(reader, end, end) == []
    add(broker, topic, 2, 0)
    assert values(reader, end, step(reader, end)) == [(0, 10), (0, 11)]
    assert stream(broker, topic).initialOffset() == {topic: {"0": 12, "1": 5}}
    reader.stop()


def test_admission_control(broker: EmbeddedBroker, topic: str) -> None:
    filled(broker, topic, 300, 100)
    reader = stream(broker, topic, startingOffsets="earliest", maxOffsetsPerTrigger="40")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(40)
    start = reader.initialOffset()
    first = step(reader, start, limit)
    assert first == {topic: {"0": 30, "1": 10}}
    assert reader.reportLatestOffset() == {topic: {"0": 300, "1": 100}}
    assert len(values(reader, start, first)) == 40
    assert step(reader, start, ALL) == {topic: {"0": 300, "1": 100}}


def test_too_little_is_waited_for(broker: EmbeddedBroker, topic: str) -> None:
    filled(broker, topic, 4)
    given = {"minOffsetsPerTrigger": "3", "maxTriggerDelay": "1h"}
    patient, limit = stream(broker, topic, startingOffsets="earliest", **given), ReadMinRows(3)
    hasty = stream(broker, topic, startingOffsets="earliest", **given | {"maxTriggerDelay": "100ms"})
    assert patient.getDefaultReadLimit() == hasty.getDefaultReadLimit() == limit
    end = step(patient, patient.initialOffset(), limit)
    assert end == step(hasty, hasty.initialOffset(), limit) == {topic: {"0": 4}}
    add(broker, topic, 2)
    soon(lambda: step(hasty, end, limit) == {topic: {"0": 6}})
    assert step(patient, end, limit) == end
    both = stream(broker, topic, startingOffsets="earliest", maxOffsetsPerTrigger="5", **given)
    assert step(both, both.initialOffset(), both.getDefaultReadLimit()) == {topic: {"0": 5}}


def test_available_now_ends_where_it_began(broker: EmbeddedBroker, topic: str) -> None:
    filled(broker, topic, 5)
    given = {"maxOffsetsPerTrigger": "3", "minOffsetsPerTrigger": "3"}
    reader = stream(broker, topic, startingOffsets="earliest", **given)
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    limit = reader.getDefaultReadLimit()
    first = step(reader, start, limit)
    add(broker, topic, 5)
    last = step(reader, first, limit)
    assert (first, last, step(reader, last, limit)) == ({topic: {"0": 3}}, {topic: {"0": 5}}, {topic: {"0": 5}})


def test_a_driver_outlives_its_broker(broker: EmbeddedBroker, topic: str) -> None:
    filled(broker, topic, 4)
    reader = stream(broker, topic, startingOffsets="earliest")
    end = step(reader, reader.initialOffset())
    broker.restart()
    assert step(reader, end) == end


def test_what_is_new_begins_at_its_earliest_offset(broker: EmbeddedBroker, topic: str) -> None:
    """A partition added to a topic, and a topic that matches a pattern; a stream may begin with none at all."""
    reader = stream(broker, None, subscribePattern=f"{topic}.*")
    start = reader.initialOffset()
    assert start == {}
    assert values(reader, start, step(reader, start)) == []
    filled(broker, topic, 3)
    end = step(reader, start)
    assert values(reader, start, end) == [(0, 0), (0, 1), (0, 2)]
    add_partition(broker, topic)
    produce(broker.bootstrap_servers, topic, [{"value": b"x", "partition": 1}])
    filled(broker, f"{topic}-2", 2)
    later = step(reader, end)
    assert later == {topic: {"0": 3, "1": 1}, f"{topic}-2": {"0": 2}}
    assert values(reader, end, later) == [(0, 0), (0, 1), (1, 0)]


def test_a_topic_that_is_deleted(broker: EmbeddedBroker, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    kept = filled(broker, f"{topic}-kept", 1)
    filled(broker, topic, 3)
    loose = stream(broker, f"{topic},{kept}", startingOffsets="earliest", failOnDataLoss="false")
    start = loose.initialOffset()
    end = step(loose, start)
    broker.delete_topic(topic)
    strict = stream(broker, f"{topic},{kept}")
    after = step(strict, end)
    with pytest.raises(
        RecordsLostError, match=f"{topic}-0 are gone, and with them what was not read yet; set option 'failOn"
    ):
        strict.partitions(end, after)
    assert step(loose, end) == {kept: {"0": 1}}
    assert values(loose, end, after) == []
    assert f"{topic}-0 are gone" in caplog.text
    assert step(loose, after) == after
    filled(broker, topic, 2)
    again = step(loose, after)
    assert values(loose, after, again) == [(0, 0), (0, 1)]


def test_a_topic_that_is_made_anew(broker: EmbeddedBroker, topic: str) -> None:
    filled(broker, topic, 8)
    loose = stream(broker, topic, startingOffsets="earliest", failOnDataLoss="false")
    end = step(loose, loose.initialOffset())
    broker.delete_topic(topic)
    filled(broker, topic, 3)
    after = step(loose, end)
    assert after == {topic: {"0": 3}}
    with pytest.raises(
        RecordsLostError, match=f"The end of {topic}-0 went from 8 back to 3: it was created again or truncated"
    ):
        stream(broker, topic).partitions(end, after)
    assert values(loose, end, after) == [(0, 0), (0, 1), (0, 2)]


def test_a_new_partition_without_its_first_records(broker: EmbeddedBroker, topic: str) -> None:
    filled(broker, topic, 8)
    delete_records(broker, topic, 5)
    with pytest.raises(RecordsLostError, match=f"The new partition {topic}-0 begins at 5 instead of 0"):
        stream(broker, topic).partitions({}, {topic: {"0": 8}})
    loose = stream(broker, topic, failOnDataLoss="false")
    assert values(loose, {}, {topic: {"0": 8}}) == [(0, 5), (0, 6), (0, 7)]


def test_a_checkpoint_of_something_else() -> None:
    with pytest.raises(WrongOptionError, match="These are no offsets of this source"):
        offsets_from({"index": 3})


def add_partition(broker: EmbeddedBroker, topic: str, count: int = 2) -> None:
    from confluent_kafka.admin import AdminClient, NewPartitions

    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_partitions([NewPartitions(topic, count)])[topic].result(10)


def test_offsets_come_back_as_they_were() -> None:
    offsets: Offsets = {("t", 0): 5, ("s", 12): 7}
    assert offsets_from(json.loads(json.dumps(offsets_as_dict(offsets)))) == offsets
