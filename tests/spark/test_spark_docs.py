"""docs/spark.md: its programs run in order on the tests' session, its settings are the table's."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from ottla.spark.session import settings
from ottla.testing import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DOCUMENT = Path(__file__).resolve().parent.parent.parent / "docs" / "spark.md"


def test_the_programs_run(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for topic in ("clicks", "loud"):
        broker.create_topic(topic)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for page in ("/", "/cart", "/"):
        producer.produce("clicks", page)
    assert producer.flush(30) == 0
    programs = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert len(programs) == 2
    names: dict[str, object] = {"__name__": "spark"}
    for program in programs:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(program.replace("localhost:9092", broker.bootstrap_servers), DOCUMENT.name, "exec"), names)
        assert printed.getvalue().splitlines() == re.findall(r"^# -> (.*)$", program, re.MULTILINE)
    assert (tmp_path / "loud-checkpoint" / "loud" / "commits").is_dir()


def test_the_settings_are_those_of_the_table() -> None:
    rows = re.findall(r"^\| `(spark\.[\w.]+)`( \*)? \| `?([^|`]+)`? \| (.*) \|$", DOCUMENT.read_text(), re.MULTILINE)
    expected = [
        (each.key, " *" if each.only_local else "", "cores" if each.value == "16" else each.value, each.why)
        for each in settings("spark://anywhere:7077")
    ]
    assert [(key, star, value.strip(), why) for key, star, value, why in rows] == expected
