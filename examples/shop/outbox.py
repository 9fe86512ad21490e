"""The transactional outbox: a service stores its events with the data that they describe, and sends them from there."""

import asyncio
import json
import sqlite3
import uuid
from typing import Any

from faststream.kafka import KafkaBroker

TABLES = """
CREATE TABLE IF NOT EXISTS outbox (id TEXT PRIMARY KEY, topic TEXT, key TEXT, event TEXT, is_sent INT DEFAULT 0);
CREATE TABLE IF NOT EXISTS handled (id TEXT PRIMARY KEY);
"""


def open_database(path: str, tables: str) -> sqlite3.Connection:
    """The service's database, with the outbox beside its own tables. `with database:` is a transaction."""
    database = sqlite3.connect(path)
    database.executescript(TABLES + tables)
    return database


def add_event(database: sqlite3.Connection, topic: str, key: str, **event: Any) -> None:
    """Store an event. It is sent if, and only if, the surrounding transaction commits."""
    event["event_id"] = str(uuid.uuid4())
    database.execute(
        "INSERT INTO outbox (id, topic, key, event) VALUES (?, ?, ?, ?)",
        (event["event_id"], topic, key, json.dumps(event)),
    )


def is_first(database: sqlite3.Connection, event_id: str) -> bool:
    """Whether this service handles the event for the first time. It remembers the event with the same transaction."""
    return database.execute("INSERT OR IGNORE INTO handled VALUES (?)", (event_id,)).rowcount == 1


async def relay(database: sqlite3.Connection, broker: KafkaBroker) -> None:
    """Send stored events in order. After a crash an event may be sent twice, so handlers use `is_first`."""
    while True:
        rows = database.execute("SELECT id, topic, key, event FROM outbox WHERE NOT is_sent ORDER BY rowid").fetchall()
        for event_id, topic, key, event in rows:
            await broker.publish(json.loads(event), topic, key=key.encode())
            with database:
                database.execute("UPDATE outbox SET is_sent = 1 WHERE id = ?", (event_id,))
        await asyncio.sleep(0.1)
