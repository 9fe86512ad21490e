"""`ottla pipeline` as a person meets it: help at once, sentences for what is missing, signals."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
from confluent_kafka import Producer

from ottla.cli.main import main
from ottla.cli.output import CommandError
from ottla.cli.pipeline.options import plain_failures
from ottla.testing import EmbeddedBroker
from tests.harness.waiting import SPARKS_PATIENCE_S, soon

Printed = Callable[[], tuple[str, str]]
HEAVY = "pyspark py4j pandas pyarrow numpy numba deltalake confluent_kafka"


def test_help_loads_nothing_heavy() -> None:
    program = (
        "import sys; from ottla.cli.main import main; main(['pipeline', '--help']);"
        f"print('loaded:', *sorted(set('{HEAVY}'.split()) & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.stdout.rstrip().endswith("loaded:"), ended.stdout[-200:]
    for pipeline in ("activity", "archive", "kmq-tracker", "logs", "replay"):
        assert f" {pipeline} " in ended.stdout


def failed(printed: Printed, *arguments: str, code: int = 1) -> str:
    """The sentence of a command that can't be done."""
    printed()
    assert main(list(arguments)) == code
    out, err = printed()
    assert out == ""
    assert err.startswith("ottla: ")
    assert err.count("\n") == 1
    return err


def test_what_is_missing_is_said(
    broker: EmbeddedBroker,
    topic: str,
    tmp_path: Path,
    printed: Printed,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    archive = ("pipeline", "archive", "--topic", topic, "--table", str(tmp_path / "table"), "--once")
    where = ("-b", broker.bootstrap_servers)
    assert f"There is no topic {topic}" in failed(printed, *archive, *where)
    assert "'kafka.sasl.mechanism' needs 'kafka.security.protocol'" in failed(
        printed, *archive, *where, "-X", "sasl.mechanism=PLAIN", code=2
    )
    assert "A setting must be KEY=VALUE" in failed(printed, *archive, *where, "--conf", "spark.ui", code=2)
    (tmp_path / "client.properties").write_text("isolation.level=sometimes\n")
    config = ("--command-config", str(tmp_path / "client.properties"))
    assert "'kafka.isolation.level' must be" in failed(printed, *archive, *where, *config, code=2)
    logs = ("pipeline", "logs", "--table", str(tmp_path / "logs"), *where)
    assert "'Mars' is no time zone: give UTC, " in failed(printed, *logs, "--zone", "Mars", code=2)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    for pipeline in (archive, ("pipeline", "kmq-tracker", "jobs", "--checkpoint", str(tmp_path))):
        sentence = (
            'Pipelines need Spark, which is not installed. `pip install ".[spark]"` in a clone of Ottla installs it.\n'
        )
        assert failed(printed, *pipeline, *where).endswith(sentence)


def test_whatever_the_extra_brings_is_told_when_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("altair", "jinja2", "vl_convert", "llvmlite.binding"):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(CommandError, match=rf'need {module}, .* `pip install "\.\[spark\]"`'), plain_failures():
            import_module(module)
    for fault in ("ottla.nothing", "json.nothing"):
        with pytest.raises(ModuleNotFoundError), plain_failures():
            import_module(fault)


@pytest.mark.slow("tests/spark/running/test_run.py::test_a_signal_does_not_wait_for_executors_that_never_come")
def test_a_run_waits_for_its_broker_and_stops_on_a_signal(topic: str, tmp_path: Path) -> None:
    said = tmp_path / "said"
    with EmbeddedBroker() as broker:
        broker.create_topic(topic, partitions=2)
        broker._stop()
        command = [
            sys.executable,
            "-m",
            "ottla",
            "pipeline",
            "archive",
            "--topic",
            topic,
            "--table",
            str(tmp_path / "t"),
        ]
        command += ["-b", broker.bootstrap_servers, "--master", "local[2]", "--conf", "spark.driver.memory=512m"]
        with said.open("w") as log:
            run = subprocess.Popen([*command, "--trigger", "0.5"], stdout=log, stderr=log, cwd=tmp_path)

        def until_said(words: str) -> None:
            soon(
                lambda: words in said.read_text() or run.poll() is not None,
                said.read_text,
                patience_s=SPARKS_PATIENCE_S,
            )
            assert words in said.read_text()

        try:
            until_said("Waiting for a broker: No broker can be reached")
            broker.start()
            producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
            for number in range(1000):
                producer.produce(topic, str(number))
            assert producer.flush(30) == 0
            until_said("archive: 1,000 rows")
            run.send_signal(signal.SIGINT)
            assert run.wait() == 0
        finally:
            run.kill()
            run.wait()
    text = said.read_text()
    assert "Stopped: 1,000 rows" in text
    assert "Archived 1,000 rows" in text
    for noise in ("Traceback", "WARN", "ERROR", "log4j", "incubator"):
        assert noise not in text
