"""Captures the changes of a SQLite table and sends them to a compacted topic: `python capture.py DATABASE [--once]`."""

import json
import os
import sqlite3
import sys
import time

from confluent_kafka import Producer

CAPTURE = """
CREATE TABLE IF NOT EXISTS changes (number INTEGER PRIMARY KEY AUTOINCREMENT, id INT, content TEXT);
CREATE TRIGGER IF NOT EXISTS added AFTER INSERT ON products BEGIN
    INSERT INTO changes (id, content) VALUES (NEW.id, json_object('name', NEW.name, 'price', NEW.price)); END;
CREATE TRIGGER IF NOT EXISTS changed AFTER UPDATE ON products BEGIN
    INSERT INTO changes (id, content) VALUES (NEW.id, json_object('name', NEW.name, 'price', NEW.price)); END;
CREATE TRIGGER IF NOT EXISTS removed AFTER DELETE ON products BEGIN
    INSERT INTO changes (id, content) VALUES (OLD.id, NULL); END;
"""


def send_changes(database: sqlite3.Connection, producer: Producer) -> int:
    """Send the stored changes in order, and remove them once the broker has acknowledged all of them.

    After a crash some changes are sent again; readers keep the newest change of a row, so that does no harm.
    """
    rows = database.execute("SELECT number, id, content FROM changes ORDER BY number LIMIT 1000").fetchall()
    refused: list[str] = []
    for _, row_id, content in rows:
        value = None if content is None else json.dumps(json.loads(content)).encode()
        producer.produce(
            "products",
            key=str(row_id),
            value=value,
            on_delivery=lambda error, _: refused.append(str(error)) if error else None,
        )
    if producer.flush(60) or refused:
        raise SystemExit(f"Changes were not acknowledged: {refused or 'the broker does not answer'}")
    if rows:
        with database:
            database.execute("DELETE FROM changes WHERE number <= ?", (rows[-1][0],))
    return len(rows)


def main(path: str, once: bool) -> None:
    database = sqlite3.connect(path)
    database.executescript(CAPTURE)
    producer = Producer(
        {"bootstrap.servers": os.environ.get("OTTLA_BOOTSTRAP", "localhost:9092"), "enable.idempotence": True}
    )
    while True:
        if not send_changes(database, producer):
            if once:
                return
            time.sleep(0.2)


if __name__ == "__main__":
    main(sys.argv[1], "--once" in sys.argv)
