"""Takes the pictures of docs/console.md: `python -m tools.console_pictures`. Needs Debian's chromium.

It starts a broker with some topics, groups and messages and the stuck queue of `./demo --console`, opens the console
in the browser, and writes PNG files.
"""

from __future__ import annotations

import json
import random
import time
from dataclasses import replace
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from ottla import __version__
from ottla.client import Client
from ottla.client.reports import RUNNING, Report
from ottla.console.settings import Settings
from ottla.demo.stuck import stick
from ottla.testing import EmbeddedBroker
from tests.harness.console.browser import opened, served, started
from tests.harness.reports import write_reports

TARGET = Path(__file__).parent.parent / "docs" / "pictures"
TOPICS = {"clicks": 6, "orders": 3, "payments": 3, "receipts": 2}
LAKE = "archive:/srv/lake/orders@etl1"
PAGES = {
    "console-overview": ("/overview", "light"),
    "console-messages": ("/messages?topic=orders&limit=20", "light"),
    "console-group": ("/group?name=billing", "dark"),
    "console-share-group": ("/share-group?name=mailers", "light"),
    "console-pipeline": (f"/pipeline?name={LAKE}", "light"),
}


def fill(bootstrap: str) -> None:
    """Produce orders and clicks, and let groups read a part of them."""
    chosen = random.Random(7)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "shop"})
    producer.init_transactions()
    producer.begin_transaction()
    for number in range(2_000):
        who = f"customer-{chosen.randrange(90)}"
        order = {"order": 4_000 + number, "customer": who, "total": round(chosen.uniform(5, 90), 2), "items": 3}
        producer.produce("orders", json.dumps(order), who, headers={"trace": f"{chosen.randrange(1 << 32):08x}"})
        producer.produce("clicks", json.dumps({"page": f"/p/{chosen.randrange(40)}"}), who)
    producer.commit_transaction()
    for group, topic, read in (("billing", "orders", 500), ("stock", "orders", 540), ("trends", "clicks", 150)):
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
        consumer.commit(offsets=[TopicPartition(topic, each, read) for each in range(3)], asynchronous=False)
        consumer.close()


def report(bootstrap: str) -> None:
    """Write what an archive of the orders could have reported in five minutes."""
    chosen, lag, rows = random.Random(11), 9_000, 0
    reports: list[Report] = []
    for number in range(60):
        arrived, processed = chosen.randrange(4_000, 6_000), min(lag, chosen.randrange(4_500, 8_000))
        lag, rows = lag + arrived - processed, rows + processed
        figures = {
            "rows": rows,
            "in_rate": processed / 5,
            "processed_rate": round(processed / chosen.uniform(0.4, 0.7), 1),
            "lag": lag,
            "batches": number,
            "batch_ms": chosen.randrange(380, 720),
            "late_rows": 0,
        }
        now_ms = int(time.time() * 1000)
        made = Report(LAKE, "archive", RUNNING, now_ms, now_ms - 300_000, 60_000, figures=figures, ottla=__version__)
        reports.append(replace(made, reads=("orders",), writes=("/srv/lake/orders",), host="etl1", pid=4_242))
    with Client(bootstrap) as client:
        write_reports(client, *reports)


def main() -> None:
    TARGET.mkdir(exist_ok=True)
    with EmbeddedBroker() as broker, started() as browser:
        for name, partitions in TOPICS.items():
            broker.create_topic(name, partitions=partitions)
        fill(broker.bootstrap_servers)
        jobs = stick(broker.bootstrap_servers)
        report(broker.bootstrap_servers)
        with served(Settings(broker.bootstrap_servers, frozenset())) as address:
            for name, (path, scheme) in PAGES.items():
                with opened(browser, address, color_scheme=scheme, viewport={"width": 1180, "height": 720}) as found:
                    found.go(path)
                    time.sleep(1)  # the transaction's marker and the second answer of the parts
                    found.page.screenshot(path=TARGET / f"{name}.png")
        jobs.stop()


if __name__ == "__main__":
    main()
