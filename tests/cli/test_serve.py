"""`ottla serve` as a process: what it says, how it stops, why it does not start."""

import http.cookiejar
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
from ottla.cli.server_properties import NotServedError, take_listeners
from ottla.client import Client
from ottla.protocol.records import Record, build_batch
from tests.harness.waiting import soon
from tools.node_process import free_port

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
        (["--durability", "none"], "--durability"),
        (["--metrics", "nonsense"], "nonsense"),
        (["--no-such-option"], "--no-such-option"),
        (["--data", ""], "--data DIR"),
        (["--config", "/no/such/file"], "/no/such/file cannot be read"),
        (["--data", "/dev/null"], "/dev/null is not a directory"),
        (["--data", "/dev/null/under"], "/dev/null/under is not a directory"),
        (["--metrics", "0.0.0.0:0"], "0.0.0.0 can be reached from other machines, and the metrics port"),
        (["--listen", "0.0.0.0:0"], "ottla.allow.public.plaintext=true"),
        (["--listen", "SASL_SSL://127.0.0.1:9093"], "The listener SASL_SSL can't serve TLS: it needs a certificate"),
        (["--set", "ssl.keystore.location=/no.pem"], "ssl.keystore.location would protect nothing: no listener"),
        (["--set", "authorizer.class.name=org.example.Authorizer"], "would protect nothing: Ottla can't load Java"),
    ],
)
def test_what_no_other_start_can_serve_is_told_in_a_sentence(serve: Serve, arguments: list[str], sentence: str) -> None:
    code, said = refusal(serve("--listen", "127.0.0.1:0", *arguments))
    assert code == 2
    assert sentence in said


def test_a_file_that_promises_protection_starts_no_node(serve: Serve, tmp_path: Path) -> None:
    config = tmp_path / "server.properties"
    config.write_text("super.users=User:admin\nnum.partitions=3\n")
    code, said = refusal(serve("--config", str(config), "--listen", "127.0.0.1:0"))
    assert code == 2
    assert said.startswith("ottla: super.users would protect nothing without an authorizer, ")
    assert not (tmp_path / "ottla-data").exists()


def test_what_the_units_for_systemd_do_not_try_again(serve: Serve, tmp_path: Path) -> None:
    docs = Path(__file__).resolve().parents[2] / "docs"
    units = [name for name in ("machines.md", "operations.md") if "ExecStart=" in (docs / name).read_text()]
    assert all("RestartPreventExitStatus=2\n" in (docs / name).read_text() for name in units)
    (tmp_path / "taken").mkdir()
    process = serve("--data", "taken", "--listen", "127.0.0.1:0", "--node-id", "1")
    first_line(process)
    process.terminate()
    process.communicate(timeout=60)
    code, said = refusal(serve("--data", "taken", "--listen", "127.0.0.1:0", "--node-id", "2"))
    assert code == 2
    assert "belongs to node 1" in said


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


KRAFT = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.quorum.bootstrap.servers": "localhost:9093",
    "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
    "inter.broker.listener.name": "PLAINTEXT",
    "advertised.listeners": "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,"
    "SASL_SSL:SASL_SSL",
    "num.network.threads": "3",
    "num.io.threads": "8",
    "socket.send.buffer.bytes": "102400",
    "socket.receive.buffer.bytes": "102400",
    "socket.request.max.bytes": "104857600",
    "log.dirs": "/tmp/kraft-combined-logs",
    "num.partitions": "1",
    "num.recovery.threads.per.data.dir": "1",
    "offsets.topic.replication.factor": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "log.retention.hours": "168",
    "log.segment.bytes": "1073741824",
    "log.retention.check.interval.ms": "300000",
}
"""What stands in config/server.properties of Kafka 4, comments left out."""


def written(path: Path, properties: dict[str, str]) -> str:
    path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    return str(path)


def test_the_properties_that_come_with_kafka_start_a_node(serve: Serve, tmp_path: Path) -> None:
    port = free_port()
    properties = {name: value.replace("9092", str(port)) for name, value in KRAFT.items()}
    process = serve("--config", written(tmp_path / "server.properties", properties), "--data", "kraft")
    line = first_line(process)
    assert f"serves Kafka clients at 127.0.0.1:{port}," in line
    with Client(f"127.0.0.1:{port}") as client:
        (broker,) = client.metadata([]).brokers
        assert (broker.host, broker.port, broker.node_id) == ("localhost", port, 1)
    process.terminate()
    _, err = process.communicate(timeout=60)
    (ignored,) = [line for line in err.splitlines() if "controller.quorum.bootstrap.servers" in line]
    assert "Ignored settings (no effect in Ottla): " in ignored
    assert "num.io.threads" in ignored
    assert "The listener CONTROLLER://:9093 is ignored" in err
    assert "names no host" in err


def test_listeners_by_name() -> None:
    settings = {
        "listeners": "inside://127.0.0.1:1,outside://10.0.0.1:2,ctl://:3",
        "advertised.listeners": "OUTSIDE://example.org:2, CTL://example.org:3, INSIDE://localhost:1",
        "listener.security.protocol.map": "INSIDE:PLAINTEXT,outside:PLAINTEXT,CTL:SSL",
        "controller.listener.names": "CTL",
    }
    listen, said = take_listeners(settings)
    assert listen == ["INSIDE://127.0.0.1:1", "OUTSIDE://10.0.0.1:2"]
    assert len(said) == 1
    assert settings["advertised.listeners"] == "OUTSIDE://example.org:2,INSIDE://localhost:1"
    public = {"listeners": "PLAINTEXT://:9092", "ottla.allow.public.plaintext": "true"}
    assert take_listeners(public) == (["PLAINTEXT://0.0.0.0:9092"], [])
    assert take_listeners({}) == ([], [])
    secured = {"listeners": "OUT://:9092", "listener.security.protocol.map": "OUT:SASL_SSL"}
    assert take_listeners(secured) == (["OUT://0.0.0.0:9092"], [])


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"process.roles": "controller"}, "one of its roles must be broker"),
        ({"listeners": "nonsense"}, "is no listener"),
        ({"listeners": "C://:1", "controller.listener.names": "C"}, "no listener for clients"),
    ],
)
def test_listeners_that_are_not_served(settings: dict[str, str], says: str) -> None:
    with pytest.raises(NotServedError, match=says):
        take_listeners(settings)


def test_why_there_is_no_node_is_json_too(serve: Serve, tmp_path: Path) -> None:
    for arguments in (["--set", "nonsense"], ["--no-such-option"], ["--data", "/dev/null"]):
        _, err = (process := serve("--log-format", "json", *arguments)).communicate(timeout=60)
        line = json.loads(err.splitlines()[-1])
        assert line["level"] == "error"
        assert process.returncode == 2


def test_a_node_that_was_killed_says_that_it_recovers(serve: Serve) -> None:
    arguments = ("--listen", "127.0.0.1:0", "--log-format", "json")
    process = serve(*arguments)
    with Client(json.loads(first_line(process))["address"]) as client:
        client.metadata(["made"], create=True)
    process.kill()
    _, before = process.communicate(timeout=60)
    assert "did not stop cleanly" not in before
    process = serve(*arguments)
    first_line(process)
    process.terminate()
    _, err = process.communicate(timeout=60)
    (line,) = [line for line in map(json.loads, err.splitlines()) if "did not stop cleanly" in line["message"]]
    assert "recovering 1 partitions" in line["message"]
    process = serve(*arguments)
    first_line(process)
    process.terminate()
    assert "did not stop cleanly" not in process.communicate(timeout=60)[1]


def test_a_start_up_line_that_nobody_reads_stops_no_node(serve: Serve, tmp_path: Path) -> None:
    port = free_port()
    arguments = [sys.executable, "-m", "ottla", "serve", "--listen", f"127.0.0.1:{port}", "--data", str(tmp_path / "d")]
    with open("/dev/full", "w") as full:
        process = subprocess.Popen(arguments, stdout=full, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        while "could not be written" not in (line := process.stderr.readline()):
            assert line, "it ended"
        with Client(f"127.0.0.1:{port}") as client:
            assert client.metadata([]).brokers
    finally:
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 0


def test_json_for_programs(serve: Serve) -> None:
    process = serve("--listen", "127.0.0.1:0", "--log-format", "json")
    started = json.loads(first_line(process))
    assert started["event"] == "started"
    assert started["listeners"] == {"PLAINTEXT": started["address"]}
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


def test_a_console_beside_the_node_ends_with_it(serve: Serve, tmp_path: Path) -> None:
    process = serve("--listen", "127.0.0.1:0", "--console", "127.0.0.1:0")
    node = first_line(process)
    assert process.stderr is not None
    line = next(each for each in process.stderr if "The console" in each)
    found = re.search(r"http://127\.0\.0\.1:(\d+)/\?token=\S+", line)
    assert found is not None, line
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(LoopbackCookies()))
    with opener.open(found[0], timeout=60) as answer:
        page = answer.read().decode()
    assert re.search(r"127\.0\.0\.1:\d+", node)[0] in page  # type: ignore[index]
    process.kill()
    soon(lambda: is_closed(int(found[1])), "the console ends with its node")


class LoopbackCookies(http.cookiejar.CookieJar):
    """Sends Secure cookies to loopback addresses, as browsers do."""

    def __init__(self) -> None:
        super().__init__(http.cookiejar.DefaultCookiePolicy(secure_protocols=("http", "https")))


def is_closed(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) != 0
