"""`ottla produce` and `ottla consume` against a real node."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

from ottla.cli import consume
from ottla.cli.produce import from_json
from ottla.client import Client
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from ottla.testing import EmbeddedBroker

from .conftest import Run


def read(ottla: Run, topic: str, *more: str) -> list[str]:
    return ottla("consume", topic, "--from-beginning", "--exit-at-end", *more).out.splitlines()


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_lines_come_back(ottla: Run, ottla_topic: str, compression: str) -> None:
    lines = [f"line {number} with ünïcödé" for number in range(200)]
    done = ottla("produce", ottla_topic, "--compression", compression, stdin="\n".join(lines))
    assert done.err == "200 records acknowledged.\n"
    assert read(ottla, ottla_topic) == lines


def test_keys_headers_and_tombstones(ottla: Run, ottla_topic: str) -> None:
    ottla("produce", ottla_topic, "-K", ":", "--null-value", "-", "-H", "who=me", stdin="a:1\nb:-\n")
    assert read(ottla, ottla_topic, "--keys", "--headers", "--offsets") == [
        "Partition:0\tOffset:0\twho:me\ta\t1",
        "Partition:0\tOffset:1\twho:me\tb\tnull",
    ]
    first, second = (json.loads(line) for line in read(ottla, ottla_topic, "--format", "json"))
    assert (first["key"], first["value"], first["headers"]) == ("a", "1", [["who", "me"]])
    assert second["value"] is None
    assert first["timestamp_type"] == "CreateTime"


def test_bytes_that_are_no_text_survive(ottla: Run, ottla_topic: str, tmp_path: Path) -> None:
    file = tmp_path / "input"
    file.write_bytes(b"\xff\xfe\n")
    ottla("produce", ottla_topic, "--input", str(file))
    assert json.loads(read(ottla, ottla_topic, "--format", "json")[0])["value"] == {"base64": "//4="}


def test_a_line_without_a_key_ends_it_and_what_is_in_is_told(ottla: Run, ottla_topic: str) -> None:
    refused = ottla("produce", ottla_topic, "-K", ":", stdin="a:1\nb:2\nnokey\nc:3\n", code=1)
    assert refused.err == (
        "ottla: Line 3 holds no key separator ':'. It and what follows it was not sent. "
        "2 of 2 records were acknowledged.\n"
    )
    assert read(ottla, ottla_topic) == ["1", "2"]


def test_a_broker_that_refuses_a_record_is_told_of(ottla: Run, ottla_topic: str) -> None:
    ottla("topics", "alter", ottla_topic, "--set", "cleanup.policy=compact")
    refused = ottla("produce", ottla_topic, stdin="without a key\n", code=1)
    assert refused.err == (
        "ottla: 0 of 1 records were acknowledged. The first that was not is line 1: "
        "Broker failed to validate record (INVALID_RECORD).\n"
    )


def test_a_key_for_all(ottla: Run, ottla_topic: str) -> None:
    ottla("produce", ottla_topic, "-k", "a", stdin="1\n2\n")
    assert read(ottla, ottla_topic, "--keys") == ["a\t1", "a\t2"]
    assert "Choose one of" in ottla("produce", ottla_topic, "-k", "a", "-K", ":", code=2).err


def test_what_consume_prints_as_json_produce_takes(ottla: Run, ottla_topic: str, tmp_path: Path) -> None:
    file = tmp_path / "input"
    file.write_bytes(b"k\xff:v\xfe\nk:-\n\xc3\xbc:\n")
    ottla("produce", ottla_topic, "-K", ":", "--null-value", "-", "-H", "who=me", "-i", str(file))
    printed = ottla("consume", ottla_topic, "-f", "-e", "--format", "json").out
    ottla("produce", ottla_topic, "--format", "json", stdin=printed)
    every = [json.loads(line) for line in read(ottla, ottla_topic, "--format", "json")]
    assert [each.pop("offset") for each in every] == list(range(6))
    assert every[:3] == every[3:]
    refused = ottla("produce", ottla_topic, "--format", "json", stdin="{}\n[]\n", code=1)
    assert "Line 2 is no record in JSON" in refused.err
    assert "for lines of text" in ottla("produce", ottla_topic, "--format", "json", "-K", ":", code=2).err


@pytest.mark.parametrize(
    "line", ["{", "1", '{"value": 1}', '{"key": {"base64": "!"}}', '{"timestamp": "x"}', '{"headers": [1]}', "\udcff"]
)
def test_json_that_is_no_record_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="is no record in JSON"):
        from_json(line.encode(errors="surrogateescape"))


def test_records_without_a_key_are_spread(ottla: Run, ottla_broker: EmbeddedBroker) -> None:
    topic = ottla_broker.create_topic(partitions=6)
    ottla("produce", topic, stdin="x\n" * 1000)
    with Client(ottla_broker.bootstrap_servers) as client:
        ends = client.list_offsets(topic, range(6))
    assert sum(ends.values()) == 1000
    assert max(ends.values()) < 400, ends  # a partition that librdkafka learns of a moment later has fewer


def test_a_record_is_shown_as_a_format_string_says(ottla: Run, ottla_topic: str) -> None:
    ottla("produce", ottla_topic, "-K", ":", "--null-value", "-", "-H", "who=me", stdin="a:1\nb:-\n")
    shown = ottla("consume", ottla_topic, "-f", "-e", "--format", r"%t|%p|%o|%k|%s|%K|%S|%h|100%%\t\\\q\n").out
    assert shown == (f"{ottla_topic}|0|0|a|1|1|1|who=me|100%\t\\\\q\n{ottla_topic}|0|1|b||1|-1|who=me|100%\t\\\\q\n")
    assert "'%x' in the format is no field" in ottla("consume", ottla_topic, "--format", "%x", code=2).err
    assert "is no format" in ottla("consume", ottla_topic, "--format", "xml", code=2).err


def test_a_place_is_chosen(ottla: Run, ottla_topic: str) -> None:
    ottla("produce", ottla_topic, stdin="0\n1\n2\n3\n")
    where = ("consume", ottla_topic, "--partition", "0", "--exit-at-end")
    assert ottla(*where, "--offset", "2").out == "2\n3\n"
    assert ottla(*where, "--offset", "-1").out == "3\n"
    assert ottla(*where, "--offset", "earliest", "-n", "1").out == "0\n"
    assert ottla(*where, "--offset", "latest").out == ""
    assert "has no partition 7" in ottla("consume", ottla_topic, "--partition", "7", code=1).err


def test_an_offset_that_is_not_there_is_refused_with_those_that_are(ottla: Run, ottla_topic: str) -> None:
    where = ("consume", ottla_topic, "-p", "0", "-e")
    assert ottla(*where, "-o", "3", code=1).err == (
        f"ottla: {ottla_topic}-0 has no offset 3: it holds no record, the next one gets 0.\n"
    )
    ottla("produce", ottla_topic, stdin="0\n1\n2\n")
    ottla("records", "delete", ottla_topic, "--before", "1")
    for absent in ("0", "4"):
        assert f"-0 has no offset {absent}: its offsets are 1 to 2." in ottla(*where, "-o", absent, code=1).err
    assert ottla(*where, "-o", "3").out == ""
    assert ottla(*where, "-o", "-99").out == "1\n2\n"


def test_the_last_records_of_every_partition(ottla: Run, ottla_broker: EmbeddedBroker) -> None:
    topic = ottla_broker.create_topic(partitions=2)
    for partition in "01":
        ottla("produce", topic, "-p", partition, stdin=f"a{partition}\nb{partition}\nc{partition}\n")
    assert sorted(read(ottla, topic, "--offset", "-2")) == ["b0", "b1", "c0", "c1"]
    assert sorted(read(ottla, topic, "--offset", "earliest")) == ["a0", "a1", "b0", "b1", "c0", "c1"]
    refused = ottla("consume", topic, "--offset", "1", code=2).err
    assert "--offset N is for one partition" in refused
    assert "goes without --group" in ottla("consume", topic, "--offset", "-1", "-g", "g", code=2).err


def test_records_since_a_time(ottla: Run, ottla_broker: EmbeddedBroker) -> None:
    topic = ottla_broker.create_topic(partitions=2)
    times = [f'{{"value": "{each}", "timestamp": {1_700_000_000_000 + each}}}' for each in range(4)]
    ottla("produce", topic, "--format", "json", stdin="\n".join(times))
    since = ("consume", topic, "-e", "--from-time")
    assert sorted(ottla(*since, "2023-11-14T22:13:20.002Z").out.split()) == ["2", "3"]
    assert ottla(*since, "2200-01-01").out == ""
    assert "is no time" in ottla(*since, "yesterday", code=2).err
    assert "--from-time goes without" in ottla(*since, "2023-11-14", "--group", "g", code=2).err


def test_topics_by_regular_expression(ottla: Run, ottla_broker: EmbeddedBroker) -> None:
    for name in ("re-a", "re-b", "other-re-a"):
        ottla_broker.create_topic(name)
        ottla("produce", name, stdin=f"{name}\n")
    reader = ("consume", "^re-.$", "-f", "-n", "2")
    assert sorted(ottla(*reader).out.split()) == ["re-a", "re-b"]
    assert sorted(ottla(*reader, "--group", "re-readers").out.split()) == ["re-a", "re-b"]
    assert sorted(ottla(*reader, "--share", "re-queue").out.split()) == ["re-a", "re-b"]
    assert "No topic matches ^nope" in ottla("consume", "^nope", code=1).err
    assert "is no regular expression" in ottla("consume", "^(", code=2).err


def test_a_group_does_not_go_past_what_left_the_process(
    ottla: Run, ottla_topic: str, ottla_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `ottla consume ... --group G | head` does it."""
    ottla("produce", ottla_topic, stdin="x" * 99 + "\n" + ("x" * 99 + "\n") * 1999)
    settings = {"bootstrap.servers": ottla_broker.bootstrap_servers, "group.id": ottla_topic}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest", "enable.auto.offset.store": False})
    consumer.subscribe([ottla_topic])
    pipe = Pipe(70_000)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BufferedWriter(pipe)))
    printed, waiting = (
        consume.Printed(consumer),
        consume.Waiting({"bootstrap.servers": ottla_broker.bootstrap_servers}, None),
    )
    with pytest.raises(BrokenPipeError):
        consume.print_records(consumer, printed, waiting, lambda record: f"{record.value!s}\n", None, 30, True)
    monkeypatch.undo()
    consumer.close()
    with Client(ottla_broker.bootstrap_servers) as client:
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(ottla_topic, topics=None)])
        ((topic,),) = (group.topics for group in client.send_to_coordinator(ottla_topic, request, 8).groups)
    assert 0 < topic.partitions[0].committed_offset <= pipe.taken // 103


class Pipe(io.RawIOBase):
    """A pipe whose reader goes after so many bytes."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = 0

    def writable(self) -> bool:
        return True

    def write(self, given: Any) -> int:
        if self.taken + len(given) > self.most:
            raise BrokenPipeError
        self.taken += len(given)
        return len(given)


def test_a_group_goes_on_where_it_stopped(ottla: Run, ottla_topic: str) -> None:
    ottla("produce", ottla_topic, stdin="0\n1\n2\n3\n")
    member = ("consume", ottla_topic, "--group", ottla_topic, "--from-beginning", "-n", "2")
    assert ottla(*member).out == "0\n1\n"
    assert ottla(*member).out == "2\n3\n"


def test_why_no_record_comes_is_said(ottla: Run, ottla_topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consume, "SILENT_S", 0.1)
    reader = ("consume", ottla_topic, "--timeout", "0.6")
    assert f"ottla: waiting at the end of {ottla_topic} for what is produced from now on; --from" in ottla(*reader).err
    assert "waiting at the end" not in ottla(*reader, "--from-beginning").err
    assert "waiting at the end" in ottla(*reader, "--group", ottla_topic).err
    ottla("produce", ottla_topic, stdin="x\n")
    ottla("consume", ottla_topic, "--group", ottla_topic, "-f", "-n", "1")
    assert "waiting at the end" not in ottla(*reader, "--group", ottla_topic).err


def test_a_broker_that_goes_is_told_of(ottla: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedBroker() as broker:
        topic = broker.create_topic()
        ottla("produce", topic, "-b", broker.bootstrap_servers, stdin="x\n")
        make, wait = consume.Printed.flush, consume.Waiting.idle

        def flush(self: consume.Printed) -> None:
            if self.pending:
                broker.stop()
            make(self)

        def idle(self: consume.Waiting, idle_s: float) -> None:
            wait(self, idle_s)
            if self._is_told:
                raise KeyboardInterrupt

        monkeypatch.setattr(consume.Printed, "flush", flush)
        monkeypatch.setattr(consume.Waiting, "idle", idle)
        told = ottla("consume", topic, "-b", broker.bootstrap_servers, "-f", code=130).err
    assert f"ottla: No broker can be reached at {broker.bootstrap_servers}: " in told
    assert "Trying on since " in told


def test_idle_is_an_end(ottla: Run, ottla_topic: str) -> None:
    assert ottla("consume", ottla_topic, "--timeout", "0.3").err == "0 records.\n"


def test_absent_topics_and_files_are_told_of(ottla: Run, ottla_topic: str) -> None:
    assert ottla("consume", "no-such-topic", code=1).err == "ottla: There is no topic no-such-topic.\n"
    assert "cannot be read: No such file" in ottla("produce", ottla_topic, "-i", "/no/such/file", code=1).err
