"""Commands that report, and `ottla pipeline list` and `describe`, which show the reports."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ottla.cli.reporting import command_line
from ottla.client import Client
from ottla.client.reporting import create_if_missing
from ottla.client.reports import FAILED, RUNNING, SILENT, STOPPED
from ottla.testing import EmbeddedBroker
from tests.harness.reports import newest, report, write_reports
from tests.harness.waiting import soon

from .conftest import Run


def test_reports_as_a_table_and_as_json(
    ottla: Run, ottla_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = "reports-of-the-table"
    given = ("--reports-from", topic)
    with Client(ottla_broker.bootstrap_servers) as client:
        create_if_missing(client, topic)
        assert ottla("pipeline", "list", *given).err == "No pipeline has reported.\n"
        figures = {"rows": 12, "in_rate": 2.5, "processed_rate": 8, "lag": 3, "batch_ms": 420}
        lake = report("lake", host="web1", figures=figures, every_ms=3_600_000, reads=("clicks",))
        broken = report("x\x1b[2J", kind="logs", state=FAILED, figures=figures, error="The disk\nis full.")
        write_reports(client, lake, broken, topic=topic)
        client.produce_raw(topic, 0, bytes(nonsense()))
    shown = ottla("pipeline", "list", *given)
    assert shown.err == "Records that are no reports of this version of Ottla: 1.\n"
    rows = [row[:7] + row[8:] for row in shown.rows()]
    assert rows == [
        ["lake", "archive", "running", "2.5", "8", "3", "420", "web1"],
        ["x\\x1b[2J", "logs", "failed", "-", "-", "3", "420", "-"],
    ]
    with monkeypatch.context() as small:
        small.setattr("ottla.client.reports.PIPELINES_MAX", 1)
        full = ottla("pipeline", "list", *given)
        assert (len(full.rows()), "there may be more" in full.err) == (1, True)
    (row, _) = ottla("pipeline", "list", *given, "--format", "json").json()
    assert (row["name"], row["state"], row["lag"]) == ("lake", "running", 3)
    facts = ottla("pipeline", "describe", "lake", *given).rows()
    assert ["READS", "clicks"] in facts
    assert ["BATCH-MS", "420"] in facts
    described = ottla("pipeline", "describe", "x\x1b[2J", *given, "--format", "json").json()
    assert (described["state"], described["error"]) == (FAILED, "The disk\nis full.")
    assert described["figures"] == {"rows": 12, "lag": 3, "batch_ms": 420}
    missing = ottla("pipeline", "describe", "nosuch", *given, code=1).err
    assert missing == f"ottla: No pipeline nosuch has reported to {topic}.\n"
    err = ottla("pipeline", "list", "--reports-from", "none", code=1).err
    assert err == "ottla: There is no topic none: pipelines report to it with --reports-to none.\n"


def nonsense() -> bytearray:
    from ottla.protocol.records import Record, build_batch

    return build_batch([Record(0, 0, b"lake", b"[]")])


def test_a_command_that_fails_says_why_in_its_last_report(ottla: Run, ottla_broker: EmbeddedBroker) -> None:
    topic = ottla_broker.create_topic()
    tracker = ("kmq", "tracker", "nosuch-queue", "--reports-to", topic, "--report-as", "mine")
    err = ottla(*tracker, code=1).err
    found = newest(ottla_broker.bootstrap_servers, topic)["mine"]
    assert (found.state, f"ottla: {found.error}\n") == (FAILED, err)
    assert (found.kind, found.reads) == ("kmq-tracker", ("nosuch-queue__markers",))


def test_a_killed_shipper_is_silent_and_the_next_one_ends_as_itself(
    ottla: Run, ottla_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """A process of its own, which is killed without a chance to report; then one that ends by itself."""
    topic, lines, bootstrap = ottla_broker.create_topic(), tmp_path / "app.log", ottla_broker.bootstrap_servers
    lines.write_text("one\ntwo\n")
    reports = f"{topic}-reports"
    arguments = ["ship", str(lines), "--topic", topic, "--state", str(tmp_path / "state"), "--host", "web1"]
    environment = {**os.environ, "OTTLA_BOOTSTRAP": bootstrap, "OTTLA_REPORTS_TO": reports}
    started = subprocess.Popen(
        [sys.executable, "-m", "ottla", *arguments], env=environment, stderr=subprocess.PIPE, text=True
    )
    try:
        with Client(bootstrap) as client:
            soon(lambda: reports in {each.name for each in client.topics()})
        soon(lambda: newest(bootstrap, reports))
        started.send_signal(signal.SIGKILL)
    finally:
        started.kill()
        started.communicate()
    (name,) = newest(bootstrap, reports)
    left = newest(bootstrap, reports)[name]
    assert (left.state, left.pid, left.kind) == (RUNNING, started.pid, "ship")
    assert left.standing(int(time.time() * 1000) + 60_000) == SILENT

    ottla(*arguments, "--once", "--quiet", "--reports-to", reports)
    ended = newest(bootstrap, reports)[name]
    assert (ended.state, ended.pid, ended.reads, ended.writes) == (STOPPED, os.getpid(), (str(lines),), (topic,))
    assert "acknowledged" in ended.summary
    documented = {"rows", "lines", "bytes", "files", "already_there", "unacknowledged"}
    assert ended.figures.keys() - {"in_rate"} == documented


def test_the_command_in_a_report_has_no_secrets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    given = ["ship", "./my logs", "-X", "sasl.password=a=b", "--property=ssl.key.pem=x\ny", "--config", "a=b"]
    shown = command_line([*given, "--schema-registry", "https://ann:pw@registry:8081"])
    assert shown == (
        f"cd {tmp_path} && ottla ship './my logs' -X sasl.password=... --property=ssl.key.pem=... --config a=b "
        "--schema-registry https://...@registry:8081"
    )
