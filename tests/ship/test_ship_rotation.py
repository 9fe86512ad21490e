"""Real files, a real broker: rotation of every kind under load, restarts, kill -9. Every line once, by its number."""

from __future__ import annotations

import collections
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Message, TopicPartition

from ottla.client import Client
from ottla.ship import runner
from ottla.ship.failures import ShipFailedError
from ottla.ship.follow import Bounds
from ottla.ship.rules import Traces
from ottla.ship.runner import Shipping, Totals, ship
from ottla.testing import EmbeddedBroker
from tests.harness.waiting import soon

PARTITIONS = 3


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(settings={"auto.create.topics.enable": "false"}) as running:
        yield running


@pytest.fixture
def topic(broker: EmbeddedBroker) -> str:
    return broker.create_topic(partitions=PARTITIONS)


@pytest.fixture
def at(broker: EmbeddedBroker, topic: str, tmp_path: Path) -> Callable[..., Shipping]:
    def shipping(*patterns: str | Path, once: bool = False, **more: object) -> Shipping:
        bounds = Bounds(flush_ms=200, linger_ms=500, record_max=20_000)
        return Shipping(
            patterns=[str(each) for each in patterns],
            topic=topic,
            settings={"bootstrap.servers": broker.bootstrap_servers, "log_level": 2},
            state=tmp_path / "state",
            host="here",
            once=once,
            rule=Traces,
            bounds=bounds,
            **more,  # type: ignore[arg-type]
        )

    return shipping


@contextmanager
def running(shipping: Shipping, said: list[str] | None = None) -> Iterator[Totals]:
    """A shipper in a thread, stopped in order at the end."""
    stop, totals, failures = threading.Event(), Totals(), []

    def work() -> None:
        try:
            done = ship(shipping, say=(said if said is not None else []).append, stopped=stop.is_set)
            for name in ("records", "lines", "bytes", "files", "already_there", "unacknowledged"):
                setattr(totals, name, getattr(done, name))
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield totals
    finally:
        stop.set()
        thread.join()
    assert not failures, failures


def once(shipping: Shipping) -> Totals:
    return ship(shipping, say=lambda text: None, stopped=lambda: False)


def read(broker: EmbeddedBroker, topic: str) -> list[Message]:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "reader",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,  # the end is told when a fetch there is answered
            "log_level": 2,
        }
    )
    consumer.assign([TopicPartition(topic, each, 0) for each in range(PARTITIONS)])
    messages: list[Message] = []
    ended = 0
    while ended < PARTITIONS:
        for message in consumer.consume(10_000, 0.05):
            if message.error() is None:
                messages.append(message)
            else:
                ended += 1
    consumer.close()
    return messages


def count(broker: EmbeddedBroker, topic: str) -> int:
    """How many records there are."""
    with Client(broker.bootstrap_servers) as client:
        return sum(client.list_offsets(topic, range(PARTITIONS)).values())


def lines_of(messages: list[Message]) -> list[bytes]:
    return [message.value() or b"" for message in messages]


def until(done: Callable[[], bool]) -> None:
    soon(done)


class Writer:
    """Writes numbered lines to a log as a service would, whatever is done to the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.written = 0
        self.file = path.open("ab", buffering=0)

    def write(self, count: int) -> None:
        for _ in range(count):
            self.file.write(b"line %07d %s\n" % (self.written, b"x" * (self.written % 97)))
            self.written += 1

    def reopen(self) -> None:
        self.file.close()
        self.file = self.path.open("ab", buffering=0)


def numbers(messages: list[Message]) -> collections.Counter[int]:
    return collections.Counter(int((message.value() or b"").split()[1]) for message in messages)


def rename(writer: Writer, number: int) -> None:
    """As logrotate does: the service writes on to the old file until it is told to open the new one."""
    writer.path.rename(writer.path.with_name(f"app.log.{number}"))
    writer.write(20)
    writer.reopen()


def copy_truncate(writer: Writer, number: int) -> None:
    shutil.copyfile(writer.path, writer.path.with_name(f"app.log.{number}"))
    os.truncate(writer.path, 0)


def delete(writer: Writer, number: int) -> None:
    writer.path.unlink()
    writer.write(20)
    writer.reopen()


ROTATED_TOO = pytest.mark.slow("tests/ship/test_ship_rotation.py::test_every_line_once_through_rotation")


@pytest.mark.parametrize("rotate", [rename, copy_truncate, delete])
@pytest.mark.parametrize("pattern", ["app.log", pytest.param("app.log*", marks=ROTATED_TOO)])
def test_every_line_once_through_rotation(
    broker: EmbeddedBroker,
    topic: str,
    at: Callable[..., Shipping],
    tmp_path: Path,
    rotate: Callable[[Writer, int], None],
    pattern: str,
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    writer = Writer(logs / "app.log")
    writer.write(300)
    with running(at(logs / pattern)) as totals:
        for number in range(1, 4):
            seen = writer.written
            writer.write(700)
            until(lambda: count(broker, topic) > seen)  # noqa: B023 - what is never seen, nobody can read
            writer.write(700)
            rotate(writer, number)
            writer.write(500)
        for _ in range(2):  # a line that came twice would come before those that are written later
            until(lambda: count(broker, topic) >= writer.written)
            writer.write(1)
        until(lambda: count(broker, topic) >= writer.written)
    counted = numbers(read(broker, topic))
    assert counted == dict.fromkeys(range(writer.written), 1)
    assert totals.records == totals.lines == writer.written


def test_rotation_while_nobody_looked(
    broker: EmbeddedBroker, topic: str, at: Callable[..., Shipping], tmp_path: Path
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    writer = Writer(logs / "app.log")
    writer.write(100)
    assert once(at(logs / "app.log", once=True)).records == 100
    assert once(at(logs / "app.log", once=True)).records == 0
    writer.write(50)
    rename(writer, 1)
    writer.write(30)
    assert once(at(logs / "app.log", once=True)).records == 100
    writer.write(10)
    copy_truncate(writer, 2)
    writer.write(5)
    assert once(at(logs / "app.log", once=True)).records == 15
    assert once(at(logs / "app.log*", once=True)).records == 0
    assert numbers(read(broker, topic)) == dict.fromkeys(range(writer.written), 1)


def test_an_inode_that_is_another_file_by_now(
    broker: EmbeddedBroker, topic: str, at: Callable[..., Shipping], tmp_path: Path
) -> None:
    log = tmp_path / "app.log"
    log.write_bytes(b"one\ntwo\n")
    assert once(at(log, once=True)).records == 2
    log.write_bytes(b"uno\ndue\ntre\n")  # the same inode
    assert once(at(log, once=True)).records == 3
    assert sorted(lines_of(read(broker, topic))) == [b"due", b"one", b"tre", b"two", b"uno"]


def test_headers_say_where_a_record_comes_from(
    broker: EmbeddedBroker, topic: str, at: Callable[..., Shipping], tmp_path: Path
) -> None:
    log = tmp_path / "billing-20260131.log"
    content = b"a\r\n\tb\r\n\nno end" + b"\0\xff" * 11_000
    log.write_bytes(content)
    totals = once(at(log, once=True))
    messages = sorted(read(broker, topic), key=lambda each: int(dict(each.headers() or [])["offset"]))
    headers = [dict(message.headers() or []) for message in messages]
    assert {(each["service"], each["file"], each["host"]) for each in headers} == {(b"billing", bytes(log), b"here")}
    assert len({each["file_id"] for each in headers}) == 1
    assert [message.value() for message in messages][:2] == [b"a\r\n\tb", b""]
    assert [(int(each["offset"]), int(each["end"])) for each in headers] == [
        (0, 7), (7, 8), (8, 20_008), (20_008, len(content))
    ]  # fmt: skip
    assert [each.get("whole") for each in headers] == [None, None, b"8", b"8"]
    assert [each.get("more") for each in headers] == [None, None, b"1", None]
    assert b"".join(lines_of(messages)[2:]) == content[8:]
    assert (totals.records, totals.lines, totals.bytes) == (4, 4, len(content))


def test_a_line_waits_for_its_end_and_a_trace_for_its_rest(
    broker: EmbeddedBroker, topic: str, at: Callable[..., Shipping], tmp_path: Path
) -> None:
    log = tmp_path / "app.log"
    with log.open("ab", buffering=0) as file, running(at(tmp_path / "*.log")):
        file.write(b"ERROR x\n\tat a\n\tat")
        time.sleep(0.05)
        file.write(b" b\nINFO y\nhal")
        until(lambda: count(broker, topic) == 2)
        file.write(b"f\n")
        until(lambda: count(broker, topic) == 3)
    assert lines_of(read(broker, topic)) == [b"ERROR x\n\tat a\n\tat b", b"INFO y", b"half"]


def test_waits_for_the_broker_and_says_so(tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    log.write_bytes(b"line 0 x\n" * 10)
    with EmbeddedBroker() as other:
        topic = other.create_topic(partitions=PARTITIONS)
        other._stop()
        said: list[str] = []
        shipping = Shipping(
            [str(log)], topic, {"bootstrap.servers": other.bootstrap_servers, "log_level": 1}, tmp_path / "s", "h"
        )
        with running(shipping, said) as totals:
            until(lambda: bool(said))
            other.start()
            until(lambda: count(other, topic) == 10)
            other._stop()
            with log.open("ab") as file:
                file.write(b"line 1 x\n" * 10)
            time.sleep(1)
            other.start()
            until(lambda: count(other, topic) == 20)
        assert totals.records == 20
        assert "Waiting for a broker" in said[0]


def test_refuses_what_cannot_work(
    broker: EmbeddedBroker, topic: str, at: Callable[..., Shipping], tmp_path: Path
) -> None:
    settings = {"bootstrap.servers": broker.bootstrap_servers, "log_level": 2}
    with pytest.raises(ShipFailedError, match="ottla topics create nowhere"):
        once(Shipping(["x"], "nowhere", settings, tmp_path / "other", "h", once=True))
    (tmp_path / "app.log").write_bytes(b"line 0\n")
    with running(at(tmp_path / "*.log")):
        until(lambda: bool(read(broker, topic)))  # who ships has its lock
        with pytest.raises(ShipFailedError, match="Another shipper"):
            once(at("x", once=True))


def test_a_bounded_part_of_what_waits_is_in_memory(
    broker: EmbeddedBroker,
    topic: str,
    at: Callable[..., Shipping],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runner, "OUTSTANDING_MAX", 50)
    monkeypatch.setattr(runner, "CHUNK", 512)
    highest = 0
    original = runner.Loop._send

    def watched(self: runner.Loop, *arguments: object) -> None:
        nonlocal highest
        original(self, *arguments)  # type: ignore[arg-type]
        highest = max(highest, self._outstanding)

    monkeypatch.setattr(runner.Loop, "_send", watched)
    log = tmp_path / "app.log"
    log.write_bytes(b"".join(b"line %d\n" % number for number in range(2_000)))
    assert once(at(log, once=True)).records == 2_000
    assert 50 <= highest <= 50 + 512 / 7 + 1
    assert numbers(read(broker, topic)) == dict.fromkeys(range(2_000), 1)


def test_kill_9_loses_nothing_and_doubles_nothing(broker: EmbeddedBroker, topic: str, tmp_path: Path) -> None:
    """The command, killed at any moment while files grow and rotate."""
    chance = random.Random(5)
    writers = [Writer(tmp_path / f"app{number}.log") for number in range(3)]
    command = [sys.executable, "-m", "ottla", "ship", str(tmp_path / "*.log*"), "--topic", topic]
    command += ["-b", broker.bootstrap_servers, "--state", str(tmp_path / "state"), "--flush-ms", "50"]
    killed = 0
    for number in range(4):
        process = subprocess.Popen(command, stderr=subprocess.PIPE)
        deadline = time.monotonic() + chance.uniform(1.0, 2.5)
        while time.monotonic() < deadline:
            for writer in writers:
                writer.write(10)
            time.sleep(0.01)
        killed += process.poll() is None
        process.kill()
        process.communicate()
        if number % 3 == 2:
            writers[0].path.rename(tmp_path / f"app0.log.{number}")
            writers[0].write(10)
            writers[0].reopen()
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    total = sum(writer.written for writer in writers)
    until(lambda: count(broker, topic) >= total)
    for writer in writers:  # a line that came twice would come before those that are written later
        writer.write(1)
    total += len(writers)
    until(lambda: count(broker, topic) >= total)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate()
    assert process.returncode == 0, said
    assert "records acknowledged" in said
    assert killed == 4
    counted = numbers(read(broker, topic))
    lost = [number for number in range(max(writer.written for writer in writers)) if not counted[number]]
    assert not lost
    assert sum(counted.values()) == total, "some came twice"
    assert counted == sum((collections.Counter(range(each.written)) for each in writers), collections.Counter())
