"""The benchmark programs run and tell what they promise: figures, ratios, a sentence where one can't be measured."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.testing import EmbeddedBroker

TOP = Path(__file__).resolve().parents[2]


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"bench.{program}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=TOP)


@pytest.mark.slow("tests/bench/test_benchmark.py::test_the_list_names_every_axis")
def test_a_quick_run_prints_the_ratio_to_a_peer(ottla_broker: EmbeddedBroker, tmp_path: Path) -> None:
    document = tmp_path / "figures.json"
    ended = run(
        "node", "--quick", "--only", "raw-produce-1x200B", "raw-fetch-50x200B",
        "--peer", ottla_broker.bootstrap_servers, "--json", str(document), "--data", str(tmp_path),
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(r"requests/s +ottla +[\d,.]+ +peer +[\d,.]+ +ratio \d+\.\d\d, more is better", ended.stdout)
    assert re.search(r"broker cpu us/request +ottla", ended.stdout)
    told = json.loads(document.read_text())
    assert told["machine"]["cores"].isdigit()
    assert told["failures"] == {}
    for name in ("raw-produce-1x200B", "raw-fetch-50x200B"):
        (ours,), (theirs,) = told["results"][name]["ottla"], told["results"][name]["peer"]
        assert ours["requests/s"] > 0
        assert theirs["requests/s"] > 0
        assert "broker cpu us/request" not in theirs, "the peer's process was not named"
    assert not list(tmp_path.glob("ottla-bench-*")), "the data of the nodes is left behind"


@pytest.mark.slow("tests/bench/test_benchmark.py::test_the_list_names_every_axis")
def test_clients_and_latency_are_measured_on_a_running_node(ottla_broker: EmbeddedBroker) -> None:
    ended = run(
        "node", "--quick", "--seconds", "0.05", "--node", ottla_broker.bootstrap_servers,
        "--only", "throughput-200B-2p-acksall-idempotent-lz4", "latency-100",
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(r"produce msg/s +ottla +[\d,.]+\n", ended.stdout)
    assert re.search(r"consume MB/s +ottla +[\d,.]+\n", ended.stdout)
    assert re.search(r"end to end p99 us +ottla +[\d,.]+\n", ended.stdout)


@pytest.mark.long
def test_a_life_is_measured_with_its_kills(tmp_path: Path) -> None:
    ended = run(
        "node", "--quick", "--data", str(tmp_path), "--partitions", "20", "--gigabytes", "0.02",
        "--only", "kill-9", "partitions", "restart", "start-process",
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(r"kill to next acknowledged s +ottla +[\d.]+\n", ended.stdout)
    assert len(re.findall(r"restart after kill -9 s +ottla +[\d.]+\n", ended.stdout)) == 2


@pytest.mark.slow("tests/bench/test_benchmark.py::test_the_list_names_every_axis")
def test_the_cost_of_tls_and_logins_is_measured(tmp_path: Path) -> None:
    names = ("cost-raw-fetch-50x200B", "tls-raw-produce-1x200B", "sasl-connections")
    ended = run("secure", "--quick", "--seconds", "0.05", "--data", str(tmp_path), "--only", *names)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(r"MB/s +tls +[\d,.]+ +plain +[\d,.]+ +ratio \d+\.\d\d, more is better", ended.stdout)
    assert re.search(r"connections/s +ottla +[\d,.]+\n", ended.stdout)
    assert not list(tmp_path.glob("ottla-bench-*")), "the data of the nodes is left behind"


@pytest.mark.slow("tests/bench/test_benchmark.py::test_the_list_names_every_axis")
def test_the_cost_of_acls_is_measured(tmp_path: Path) -> None:
    ended = run("secure", "--quick", "--data", str(tmp_path), "--only", "acls", "plain-throughput-100B")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(r"requests/s +10,000 ACLs +[\d,.]+ +none +[\d,.]+ +ratio", ended.stdout)


@pytest.mark.long
def test_a_cluster_is_measured_with_its_kills(tmp_path: Path) -> None:
    ended = run(
        "cluster", "--quick", "--data", str(tmp_path), "--partitions", "30", "--only", "failover", "growth", "spread"
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(r"SIGTERM of kill -9 +ottla +[\d.e-]+\n", ended.stdout)
    assert re.search(r"1,000: a node dies: each node follows ms +ottla +[\d.]+\n", ended.stdout)
    assert re.search(r"raw 50x200B MB/s: of one node's +ottla +[\d.]+\n", ended.stdout)
    assert not list(tmp_path.glob("ottla-bench-*")), "the data of the nodes is left behind"


def test_a_peer_that_does_not_answer_is_told_and_ends_with_1(tmp_path: Path) -> None:
    ended = run("node", "--quick", "--only", "raw-produce-1x200B", "--peer", "127.0.0.1:1", "--data", str(tmp_path))
    assert ended.returncode == 1
    assert "not measured: No broker can be reached at 127.0.0.1:1" in ended.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--peer", "192.0.2.1:9092"), "192.0.2.1:9092 is not on this machine: loopback only."),
        (("--peer", "nowhere"), "'nowhere' is no address of the form HOST:PORT[,PID]."),
        (("--only", "speed"), "No measurement is called 'speed'; see --list."),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: tuple[str, ...], sentence: str) -> None:
    ended = run("node", *arguments)
    assert ended.returncode == 2
    assert ended.stderr.strip() == sentence


def test_the_list_names_every_axis() -> None:
    listed = {line.split()[0] for line in run("node", "--list").stdout.splitlines()}
    sizes = {f"throughput-{size}" for size in ("100B", "200B", "1kB", "10kB")}
    codecs = {f"throughput-1kB-{codec}" for codec in ("gzip", "snappy", "lz4", "zstd")}
    others = {"throughput-200B-16p", "throughput-200B-256p", "throughput-1kB-acks0", "throughput-1kB-acksall"}
    life = {"start-process", "start-embedded", "kill-9", "memory", "partitions", "restart"}
    assert sizes | codecs | others | life <= listed


@pytest.mark.slow("tests/bench/test_benchmark.py::test_the_list_names_every_axis")
def test_the_microbenchmarks_print_microseconds() -> None:
    ended = run("micro", "--seconds", "0.01")
    assert ended.returncode == 0, ended.stderr
    names = run("micro", "--list").stdout.split()
    told = dict(re.findall(r"^(\S+) +([\d.]+) +[\d.]+$", ended.stdout, re.MULTILINE))
    assert list(told) == names
    assert all(float(least) > 0 for least in told.values())
