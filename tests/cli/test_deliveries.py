"""`ottla produce` while the cluster takes nothing: it says so within seconds, why, and how many were acknowledged."""

import io
import re
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ottla.cli import deliveries, produce
from ottla.cli.main import main
from ottla.testing import EmbeddedBroker

Printed = Callable[[], tuple[str, str]]

BRIEFLY = ("-X", "message.timeout.ms=1200", "-X", "retry.backoff.ms=50", "-X", "reconnect.backoff.max.ms=100")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that says after a moment that nothing moves."""
    monkeypatch.setattr(deliveries, "SILENT_S", 0.2)
    monkeypatch.setattr(produce, "INTERRUPTED_S", 0.1)


def produce_lines(monkeypatch: pytest.MonkeyPatch, given: Iterator[bytes], *arguments: str) -> int:
    class Input(io.TextIOBase):
        buffer = given

    monkeypatch.setattr(sys, "stdin", Input())
    return main(["produce", *BRIEFLY, *arguments])


@pytest.fixture
def node(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """A node in a process of its own, whose limits are its own."""
    command = [sys.executable, "-B", "-m", "ottla", "serve", "--data", str(tmp_path), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        yield process
        process.kill()


def address_of(node: "subprocess.Popen[str]") -> str:
    assert node.stdout is not None
    found = re.search(r"127\.0\.0\.1:\d+", node.stdout.readline())
    assert found is not None
    return found[0]


def test_a_disk_that_takes_no_more_is_told_of(
    node: "subprocess.Popen[str]", printed: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = address_of(node)
    assert produce_lines(monkeypatch, iter([b"before"]), "t", "-b", address) == 0
    _, highest = resource.prlimit(node.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (1000, highest))  # less than either record, in a batch of its own
    printed()
    assert produce_lines(monkeypatch, iter([b"x" * 2000, b"y" * 2000]), "t", "-b", address) == 1
    err = printed()[1]
    assert re.search(r"waiting since \d\d:\d\d:\d\d for 2 of 2 records to be acknowledged: Disk error .* log says", err)
    assert re.search(r"0 of 2 records were acknowledged. The first that was not is line 1: .*Disk error", err)


def test_a_broker_that_goes_is_told_of(printed: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedBroker() as broker:

        def lines() -> Iterator[bytes]:
            yield b"in"
            sent[0]._producer.flush(30)
            broker.stop()
            yield b"out"

        sent: list[deliveries.Deliveries] = []
        make = deliveries.Deliveries.__init__

        def remembered(self: deliveries.Deliveries, settings: dict[str, object]) -> None:
            sent.append(self)
            make(self, settings)

        monkeypatch.setattr(deliveries.Deliveries, "__init__", remembered)
        assert produce_lines(monkeypatch, lines(), "t", "-b", broker.bootstrap_servers) == 1
        err = printed()[1]
        assert re.search(r"waiting since .* for 1 of 2 records to be acknowledged: 127\.0\.0\.1:\d+: \S", err)
        assert "1 of 2 records were acknowledged. The first that was not is line 2" in err


def test_it_goes_on_when_the_broker_is_back(printed: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedBroker() as broker:
        heard = threading.Event()
        say_as_before = deliveries.say

        def listen(sentence: str, *, err: bool = False) -> None:
            say_as_before(sentence, err=err)
            if "waiting since" in sentence:
                heard.set()

        monkeypatch.setattr(deliveries, "say", listen)

        def lines() -> Iterator[bytes]:
            broker._stop()
            yield b"one"
            assert heard.wait(30), "a command that waits for input says so too"
            broker.start()

        arguments = ("t", "-b", broker.bootstrap_servers, "-X", "message.timeout.ms=30000")
        assert produce_lines(monkeypatch, lines(), *arguments) == 0
        assert printed()[1].endswith("1 record acknowledged.\n")


def test_an_interrupted_command_says_what_is_in(
    ottla_broker: EmbeddedBroker, ottla_topic: str, printed: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lines() -> Iterator[bytes]:
        yield b"one"
        raise KeyboardInterrupt

    assert produce_lines(monkeypatch, lines(), ottla_topic, "-b", ottla_broker.bootstrap_servers) == 130
    assert "ottla: interrupted: 1 of 1 records were acknowledged." in printed()[1]
