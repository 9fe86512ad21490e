"""Reports of pipelines for tests."""

from __future__ import annotations

from typing import Any

from ottla.client import Client
from ottla.client.reporting import create_if_missing
from ottla.client.reports import RUNNING, TOPIC, Report, ReportsReader
from ottla.protocol.records import Record, build_batch


def report(name: str = "archive:/lake@web1", **fields: Any) -> Report:
    """A report of a running pipeline."""
    given = {"kind": "archive", "state": RUNNING, "at_ms": 10_000, "started_ms": 1_000, "every_ms": 5_000, **fields}
    return Report(name, **given)


def write_reports(client: Client, *reports: Report, topic: str = TOPIC) -> None:
    """Write reports as pipelines do; the broker stamps them."""
    create_if_missing(client, topic)
    records = [Record(-1, each.at_ms, each.name.encode(), each.encoded()) for each in reports]
    client.produce_raw(topic, 0, bytes(build_batch(records)))


def newest(bootstrap: str, topic: str = TOPIC) -> dict[str, Report]:
    """The newest reports in the topic."""
    reader = ReportsReader(topic)
    with Client(bootstrap) as client:
        assert reader.read(client)
    return reader.newest()
