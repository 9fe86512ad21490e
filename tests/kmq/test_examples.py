"""The examples of docs/kmq.md run, in their order, against a real broker."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ottla.kmq import KmqClient, KmqConfig
from tests.cli.conftest import Run, ottla  # noqa: F401

from .conftest import QueueStage, take

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "kmq.md").read_text()
EXAMPLES: list[str] = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
COMMANDS: list[list[str]] = [line.split()[1:] for line in re.findall(r"^(ottla .*)$", TEXT, re.MULTILINE)]


class Application:
    """What the examples leave to their reader."""

    def __init__(self) -> None:
        self.done: list[bytes] = []
        self.turns = 0

    def running(self) -> bool:
        time.sleep(0.05)
        self.turns += 1
        return self.turns % 100 != 0 and len(self.done) < 3

    def send_invoice(self, value: bytes) -> None:
        self.done.append(value)

    async def send_mail(self, value: bytes) -> None:
        await asyncio.sleep(0)
        self.done.append(value)

    def render_video(self, value: bytes, on_progress: Any) -> None:
        on_progress()
        if value == b"late":
            raise TimeoutError("the renderer is busy")
        if value == b"bad":
            raise ValueError("not a video")
        self.done.append(value)

    def names(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("running", "send_invoice", "send_mail", "render_video")}


@pytest.fixture
def jobs(ottla: Run, ottla_broker: Any) -> QueueStage:  # noqa: F811
    """The queue of the document, made by its own command."""
    assert COMMANDS[0][:3] == ["kmq", "create", "jobs"]
    ottla(*COMMANDS[0])
    return QueueStage(ottla_broker.bootstrap_servers, KmqConfig(queue="jobs"))


def run_example(stage: QueueStage, source: str, application: Application) -> dict[str, Any]:
    names = application.names()
    exec(compile(source.replace("localhost:9092", stage.bootstrap), "docs/kmq.md", "exec"), names)
    return names


def with_word(word: str) -> str:
    (found,) = [each for each in EXAMPLES if word in each]
    return found


def test_every_example_is_known() -> None:
    words = ("send_invoice", "secure", "render_video", "timeout_ms_of", "asyncio.run", "RedeliveryTracker(")
    assert sorted(with_word(word) for word in words) == sorted(EXAMPLES)
    assert [command[1] for command in COMMANDS] == ["create", "tracker", "stats", "redrive", "redrive"]


def test_workers_take_and_finish(jobs: QueueStage) -> None:
    jobs.send(b"1", b"2", b"3")
    application = Application()
    names = run_example(jobs, with_word("send_invoice"), application)
    assert application.done == [b"1", b"2", b"3"]
    for word in ("secure", "timeout_ms_of"):
        source = "from ottla.kmq import KmqClient\n" + with_word(word)
        exec(compile(source.replace("localhost:9092", jobs.bootstrap), "docs/kmq.md", "exec"), names)


def test_more_is_said(jobs: QueueStage) -> None:
    jobs = jobs.with_(group_id="kmq-jobs-more")
    before = len(jobs.records("jobs"))
    jobs.send(b"good", b"late", b"bad")
    application = Application()
    names = run_example(jobs, with_word("render_video"), application)
    with KmqClient(jobs.properties, jobs.config) as client:
        for message in take(client, before + 3)[-3:]:
            names["handle"](client, message)
    assert application.done == [b"good"]
    said = [value[9:] for _, value in jobs.markers() if value is not None and len(value) > 9]
    assert said[-5:] == [b"\x01", b"\x01", b"\x02the renderer is busy", b"\x01", b"\x03not a video"]


def test_asyncio_does_the_same(jobs: QueueStage) -> None:
    jobs.send(b"1", b"2", b"3")
    application = Application()
    run_example(jobs, with_word("asyncio.run"), application)
    assert len(application.done) >= 3


def test_a_tracker_runs_in_a_program(jobs: QueueStage, capfd: pytest.CaptureFixture[str]) -> None:
    run_example(jobs, with_word("RedeliveryTracker("), Application())
    assert "came again" in capfd.readouterr().out


def test_the_commands_run(ottla: Run, jobs: QueueStage) -> None:  # noqa: F811
    tracker, *others = COMMANDS[1:]
    process = subprocess.Popen(
        [sys.executable, "-m", "ottla", *tracker, "--bootstrap", jobs.bootstrap], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    while "follows markers" not in (line := process.stderr.readline()):
        assert line, "it ended before it followed anything"
    for command in others:
        ottla(*command)
    process.terminate()
    process.communicate()
    assert process.returncode == 0
