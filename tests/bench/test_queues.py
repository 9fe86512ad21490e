"""The queues' benchmark runs and tells what it promises; it says what is not installed, and which floors it missed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.testing import EmbeddedBroker

TOP = Path(__file__).resolve().parents[2]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench.queues", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=TOP, env={**os.environ, **environment})


@pytest.mark.slow("tests/bench/test_benchmark.py::test_the_list_names_every_axis")
def test_groups_are_measured_beside_a_peer(ottla_broker: EmbeddedBroker, tmp_path: Path) -> None:
    document = tmp_path / "figures.json"
    ended = run(
        "--quick", "--only", "share-2-explicit", "share-latency-200", "--peer", ottla_broker.bootstrap_servers,
        "--data", str(tmp_path), "--json", str(document),
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(r"share msg/s +ottla +[\d,.]+ +peer +[\d,.]+ +ratio \d+\.\d\d, more is better", ended.stdout)
    told = json.loads(document.read_text())["results"]
    for broker in ("ottla", "peer"):
        (load,), (pace,) = told["share-2-explicit"][broker], told["share-latency-200"][broker]
        assert load["share msg/s"] > 0
        assert load["group msg/s"] > 0
        assert pace["share end to end p99 us"] >= pace["share end to end p50 us"] > 0
    assert not list(tmp_path.glob("ottla-bench-*")), "the data of the nodes is left behind"


@pytest.mark.long
def test_workers_are_counted_and_the_floor_is_told(tmp_path: Path) -> None:
    ended = run("--quick", "--only", "workers-5ms-1p", "--data", str(tmp_path))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    rates = re.findall(r"(\d+) workers jobs/s +ottla +([\d,.]+)", ended.stdout)
    assert [int(workers) for workers, _ in rates] == [1, 2, 4, 8, 16, 32]
    assert all(0 < float(rate.replace(",", "")) <= int(workers) * 200 * 1.5 for workers, rate in rates)
    assert (
        len(re.findall(r"floor (met|MISSED): \d+ workers of linear /s [\d.]+, asked at least 0\.9", ended.stdout)) == 5
    )


@pytest.mark.long
def test_records_in_flight_and_on_back_off(tmp_path: Path) -> None:
    document = tmp_path / "figures.json"
    ended = run(
        "--quick", "--records", "2000", "--only", "in-flight", "back-off", "--data", str(tmp_path),
        "--json", str(document),
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    told = json.loads(document.read_text())
    (window,), (waiting,) = told["results"]["in-flight"]["ottla"], told["results"]["back-off"]["ottla"]
    assert window["acknowledge at 1000 p50 us"] > 0
    assert window["acknowledge at 2000 p50 us"] > 0
    assert waiting["due: first one after s"] >= 0
    assert any("resident in flight MB" in verdict for verdict in told["floors"]["in-flight"])


def test_a_queue_that_is_not_installed_is_said_to_be(tmp_path: Path) -> None:
    ended = run("--list", PATH=str(tmp_path))
    assert ended.returncode == 0
    (line,) = [line for line in ended.stdout.splitlines() if line.startswith("others")]
    assert "NATS: nats-server is not installed" in line


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--peer", "192.0.2.1:9092"), "192.0.2.1:9092 is not on this machine: loopback only."),
        (("--only", "share-0"), "No measurement is called 'share-0'; see --list."),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: tuple[str, ...], sentence: str) -> None:
    ended = run(*arguments)
    assert ended.returncode == 2
    assert ended.stderr.strip() == sentence
