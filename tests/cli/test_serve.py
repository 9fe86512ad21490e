"""`ottla serve` as a process: what it says, how it stops, why it does not start."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ottla import __version__
from ottla.client import Client
from ottla.protocol.records import Record, build_batch

Serve = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Start a node in tmp_path; whatever is left of it ends with the test."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-m", "ottla", "serve", *arguments],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def first_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def refusal(process: "subprocess.Popen[str]") -> tuple[int, str]:
    out, err = process.communicate(timeout=60)
    assert out == ""
    assert "Traceback" not in err
    return process.returncode, err.splitlines()[-1]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_serves_and_stops_cleanly(serve: Serve, tmp_path: Path, number: signal.Signals) -> None:
    process = serve("--listen", "127.0.0.1:0")
    line = first_line(process)
    found = re.fullmatch(r"Ottla (\S+) serves Kafka clients at (127\.0\.0\.1:\d+), data in (.+)\n", line)
    assert found is not None, line
    assert found[1] == __version__
    assert found[3] == str(tmp_path / "ottla-data")
    with Client(found[2]) as client:
        client.metadata(["made"], create=True)
        client.produce_raw("made", 0, build_batch([Record(value=b"x")]))
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "Traceback" not in err
    assert (tmp_path / "ottla-data" / "made-0" / "00000000000000000000.log").stat().st_size > 61
    assert (tmp_path / "ottla-data" / ".kafka_cleanshutdown").exists()


def test_two_nodes_cannot_share_a_port_or_a_directory(serve: Serve, tmp_path: Path) -> None:
    port = free_port()
    first_line(serve("--data", "one", "--listen", f"127.0.0.1:{port}"))
    code, said = refusal(serve("--data", "two", "--listen", f"127.0.0.1:{port}"))
    assert code == 1
    assert said.startswith(f"ottla: Can't listen on 127.0.0.1:{port}: ")
    code, said = refusal(serve("--data", "one", "--listen", "127.0.0.1:0"))
    assert code == 1
    assert "is locked by another node" in said


@pytest.mark.skipif(os.geteuid() == 0 and not os.path.exists("/proc/self"), reason="needs a place root cannot write")
def test_a_directory_that_cannot_be_written_is_refused(serve: Serve) -> None:
    code, said = refusal(serve("--data", "/proc/self/nowhere", "--listen", "127.0.0.1:0"))
    assert code == 1
    assert "/proc/self/nowhere is not writable" in said


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--set", "no.such.property=1"], "no.such.property"),
        (["--set", "num.partitions=many"], "num.partitions"),
        (["--set", "nonsense"], "--set takes KEY=VALUE"),
        (["--listen", "nonsense"], "nonsense"),
        (["--config", "/no/such/file"], "/no/such/file cannot be read"),
        (["--durability", "none"], "--durability"),
        (["--metrics", "nonsense"], "nonsense"),
        (["--no-such-option"], "--no-such-option"),
    ],
)
def test_what_cannot_be_served_is_told_in_a_sentence(serve: Serve, arguments: list[str], sentence: str) -> None:
    code, said = refusal(serve("--listen", "127.0.0.1:0", *arguments))
    assert code in (1, 2)
    assert sentence in said


def test_a_properties_file_in_kafkas_words(serve: Serve, tmp_path: Path) -> None:
    config = tmp_path / "server.properties"
    config.write_text(
        "# a comment\nnode.id=7\nlog.dirs=from-file\nnum.partitions = 3\n"
        "listeners=PLAINTEXT://127.0.0.1:0\ngroup.initial.rebalance.delay.ms=\\\n  0\n"
    )
    process = serve("--config", str(config), "--set", "num.partitions=4")
    line = first_line(process)
    assert str(tmp_path / "from-file") in line, line
    with Client(line.split(" at ")[1].split(",")[0]) as client:
        answer = client.metadata(["made"], create=True)
        assert [broker.node_id for broker in answer.brokers] == [7]
        assert len(client.topic("made").leaders) == 4


def test_json_for_programs(serve: Serve) -> None:
    process = serve("--listen", "127.0.0.1:0", "--log-format", "json")
    started = json.loads(first_line(process))
    assert started["event"] == "started"
    assert started["version"] == __version__
    process.terminate()
    _, err = process.communicate(timeout=60)
    for line in err.splitlines():
        assert {"time", "level", "logger", "message"} <= set(json.loads(line))


def test_metrics_under_kafkas_names(serve: Serve) -> None:
    port = free_port()
    line = first_line(serve("--listen", "127.0.0.1:0", "--metrics", f"127.0.0.1:{port}"))
    assert f"http://127.0.0.1:{port}/metrics" in line
    with Client(line.split(" at ")[1].split(",")[0]) as client:
        client.metadata(["made"], create=True)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    assert 'kafka_log_log_logendoffset{topic="made",partition="0"} 0\n' in text


def test_help_is_in_the_tree_and_on_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    from ottla.cli.main import main

    assert main(["--help"]) == 0
    assert "serve" in capfd.readouterr().out
    assert main(["serve", "--help"]) == 0
    assert "examples:" in capfd.readouterr().out
