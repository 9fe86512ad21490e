"""The reader's options: what each means, and what is refused with which sentence."""

from __future__ import annotations

import pytest

from ottla.client.client import EARLIEST, LATEST
from ottla.spark.platform.client_properties import WrongOptionError, client_properties
from ottla.spark.reader.options import (
    AtTime,
    Edge,
    SourceOptions,
    Specific,
    any_options,
    batch_options,
    offsets_as_dict,
    offsets_from,
    stream_options,
)

NEEDED = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "a"}


def batch(**given: str) -> SourceOptions:
    return batch_options(NEEDED | {name.replace("__", "."): value for name, value in given.items()})


def stream(**given: str) -> SourceOptions:
    return stream_options(NEEDED | {name.replace("__", "."): value for name, value in given.items()})


def test_defaults_are_sparks() -> None:
    read, streamed = batch(), stream()
    assert (read.starting, read.ending) == (Edge(EARLIEST), Edge(LATEST))
    assert streamed.starting == Edge(LATEST)
    assert read.fail_on_data_loss
    assert not read.include_headers
    assert (read.fetch_offset_retries, read.fetch_offset_retry_interval_ms, read.poll_timeout_ms) == (3, 1000, 120_000)
    assert (read.min_partitions, read.max_offsets_per_trigger, read.max_trigger_delay_ms) == (None, None, 900_000)
    assert not read.client.read_committed
    assert read.client.check_crcs


def test_names_are_of_any_case() -> None:
    upper = {name.upper(): value for name, value in (NEEDED | {"maxOffsetsPerTrigger": "5"}).items()}
    assert stream_options(upper).max_offsets_per_trigger == 5


def test_what_is_read() -> None:
    assert batch(subscribe=" b, a ,,b").subscription.topics == ("b", "a")
    given = {"kafka.bootstrap.servers": "h:1", "assign": '{"t":[2,0],"s":[1]}'}
    assert batch_options(given).subscription.places == (("s", 1), ("t", 0), ("t", 2))
    given = {"kafka.bootstrap.servers": "h:1", "subscribePattern": "t.*"}
    assert batch_options(given).subscription.pattern == "t.*"


def test_where_reading_begins_in_sparks_order() -> None:
    offsets = '{"a":{"0":7,"1":-2}}'
    times = '{"a":{"0":5}}'
    assert batch(startingOffsets=offsets).starting == Specific({("a", 0): 7, ("a", 1): EARLIEST})
    both = batch(startingOffsets=offsets, startingOffsetsByTimestamp=times)
    assert both.starting == AtTime(None, {("a", 0): 5}, else_latest=False)
    assert batch(startingTimestamp="9", startingOffsetsByTimestamp=times).starting == AtTime(9, {}, False)
    latest = batch(startingTimestamp="9", startingOffsetsByTimestampStrategy="LATEST")
    assert latest.starting == AtTime(9, {}, else_latest=True)
    assert batch(endingTimestamp="9").ending == AtTime(9, {}, else_latest=True)
    assert batch(startingOffsets="EARLIEST", endingOffsets="latest").ending == Edge(LATEST)


@pytest.mark.parametrize(
    ("text", "ms"), [("500ms", 500), ("30s", 30_000), ("15m", 900_000), ("1h", 3_600_000), ("7", 7), ("2min", 120_000)]
)
def test_times_as_spark_writes_them(text: str, ms: int) -> None:
    assert stream(maxTriggerDelay=text).max_trigger_delay_ms == ms


def test_kafkas_properties_reach_the_client() -> None:
    given = {
        "kafka.isolation.level": "read_committed",
        "kafka.fetch.max.bytes": "1000",
        "kafka.max.partition.fetch.bytes": "500",
        "kafka.request.timeout.ms": "9000",
        "kafka.client.id": "me",
        "kafka.check.crcs": "false",
        "kafka.group.id": "no group is made",
        "kafka.linger.ms": "what the other end of a pipeline is told",
        "groupIdPrefix": "nor here",
    }
    client = batch_options(NEEDED | given).client
    assert (client.isolation_level, client.fetch_max_bytes, client.partition_fetch_max_bytes) == (1, 1000, 500)
    assert (client.request_timeout_ms, client.client_id, client.check_crcs, client.tls) == (9000, "me", False, None)


def test_tls_with_pem() -> None:
    given = {
        "kafka.security.protocol": "SSL",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": "/ca.pem",
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.key": "KEY",
        "kafka.ssl.keystore.certificate.chain": "CERT",
        "kafka.ssl.endpoint.identification.algorithm": "",
    }
    tls = batch_options(NEEDED | given).client.tls
    assert tls is not None
    assert (tls.truststore_path, tls.keystore_pem, tls.checks_hostname) == ("/ca.pem", "KEY\nCERT\n", False)
    with pytest.raises(WrongOptionError, match=r"The PEM /ca.pem can't be used for TLS"):
        tls.context()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"subscribePattern": "b"}, "Only one of these options can be given: assign, subscribe, subscribePattern"),
        ({"subscribe": " , "}, "No topics to subscribe to"),
        ({"subscribe": None}, "One of these options must be given: assign, subscribe, subscribePattern"),
        ({"subscribe": None, "assign": "t"}, "Option 'assign' must look like"),
        ({"subscribe": None, "assign": '{"t":["0"]}'}, "Option 'assign' must look like"),
        ({"subscribe": None, "assign": "{}"}, "No partitions to read"),
        ({"subscribe": None, "subscribePattern": " "}, "Option 'subscribePattern' is empty"),
        ({"subscribe": None, "subscribePattern": "["}, "is no regular expression"),
        ({"kafka.bootstrap.servers": None}, "Option 'kafka.bootstrap.servers' must be given"),
        ({"kafka.bootstrap.servers": "nowhere"}, "'nowhere' is no address of the form host:port"),
        ({"startingOffsets": "first"}, "Option 'startingOffsets' must look like"),
        ({"startingOffsets": '{"a":{"0":-3}}'}, "has -3 for a-0"),
        ({"startingOffsets": '{"a":{"0":true}}'}, "Option 'startingOffsets' must look like"),
        ({"startingOffsets": '{"a":[0]}'}, "Option 'startingOffsets' must look like"),
        ({"startingTimestamp": "soon"}, "Option 'startingTimestamp' must be a time in ms since 1970, not 'soon'"),
        ({"startingOffsetsByTimestampStrategy": "x"}, "must be 'error' or 'latest'"),
        ({"minPartitions": "0"}, "Option 'minPartitions' must be a whole number of at least 1, not '0'"),
        ({"maxRecordsPerPartition": "-1"}, "Option 'maxRecordsPerPartition' must be"),
        ({"maxOffsetsPerTrigger": "many"}, "Option 'maxOffsetsPerTrigger' must be"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "is higher than maxOffsetsPerTrigger"),
        ({"maxTriggerDelay": "soon"}, "Option 'maxTriggerDelay' must be a time"),
        ({"failOnDataLoss": "perhaps"}, "Option 'failOnDataLoss' must be true or false"),
        ({"startingOffset": "earliest"}, "Option 'startingoffset' is not known; did you mean 'startingOffsets'"),
        ({"kafka.auto.offset.reset": "earliest"}, "set 'startingOffsets' instead"),
        ({"kafka.key.deserializer": "x"}, "keys come as bytes"),
        ({"kafka.value.deserializer": "x"}, "values come as bytes"),
        ({"kafka.enable.auto.commit": "true"}, "the query keeps its own offsets"),
        ({"kafka.interceptor.classes": "x"}, "interceptors could change what is read"),
        ({"kafka.isolation.level": "dirty"}, "must be read_uncommitted or read_committed"),
        ({"kafka.security.protocol": "TLS"}, "must be PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL, not 'TLS'"),
        ({"kafka.security.protocol": "SASL_SSL"}, "sasl.mechanism is missing"),
        ({"kafka.sasl.jaas.config": "x"}, "needs 'kafka.security.protocol'"),
        ({"kafka.security.protocol": "SSL", "kafka.ssl.keystore.location": "k.jks"}, "keystore.type' must be PEM"),
        ({"kafka.fetch.max.bytes": "1k"}, "Option 'kafka.fetch.max.bytes' must be a whole number"),
        ({"kafka.no.such.thing": "x"}, "Option 'kafka.no.such.thing' is not supported by this source"),
        ({"kafka.allow.auto.create.topics": "true"}, "reading never makes a topic"),
    ],
)
def test_what_is_refused_in_any_query(given: dict[str, str | None], sentence: str) -> None:
    options = {name: value for name, value in (NEEDED | given).items() if value is not None}
    for read in (any_options, batch_options, stream_options):
        with pytest.raises(WrongOptionError) as refused:
            read(options)
        assert sentence in str(refused.value)
        assert str(refused.value).endswith((".", "?"))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"startingOffsets": "latest"}, "The starting offset can't be latest for batch queries"),
        ({"endingOffsets": "earliest"}, "The ending offset can't be earliest for batch queries"),
        ({"startingOffsets": '{"a":{"0":-1}}'}, r"starting offset of a-0 can't be latest \(-1\)"),
        ({"endingOffsets": '{"a":{"0":-2}}'}, r"ending offset of a-0 can't be earliest \(-2\)"),
        (
            {"startingOffsets": '{"a":{"0":1}}', "endingOffsets": '{"a":{"0":2,"1":2}}'},
            "must name the same partitions; only one names a-1",
        ),
        (
            {"startingOffsets": '{"a":{"0":5}}', "endingOffsets": '{"a":{"0":2}}'},
            "The starting offset 5 of a-0 is behind its ending offset 2",
        ),
        (
            {"startingOffsetsByTimestamp": '{"a":{"0":5}}', "endingOffsetsByTimestamp": '{"a":{"0":2}}'},
            "The starting time 5 of a-0 is behind its ending time 2",
        ),
        ({"startingTimestamp": "5", "endingTimestamp": "2"}, r"startingTimestamp \(5\) is later"),
    ],
)
def test_what_is_refused_in_a_batch(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(WrongOptionError, match=sentence):
        batch_options(NEEDED | given)


@pytest.mark.parametrize("name", ["endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    with pytest.raises(WrongOptionError, match=f"Option '{name}' is not valid in streaming queries"):
        stream_options(NEEDED | {name: "1"})


def test_what_belongs_to_others_passes() -> None:
    assert batch(path="/somewhere", topic="the sink's", checkpointLocation="/c")


def test_offsets_are_always_written_alike() -> None:
    offsets = {("b", 10): 1, ("b", 9): 2, ("a", 0): 3}
    written = offsets_as_dict(offsets)
    assert list(written) == ["a", "b"]
    assert list(written["b"]) == ["9", "10"]
    assert offsets_from(written) == offsets


def test_properties_can_be_kept_by() -> None:
    """A worker keeps its connections by them."""
    assert hash(client_properties(NEEDED)) == hash(client_properties(dict(NEEDED)))
