"""The order service: `python orders.py 3` places three orders and sends their events."""

import asyncio
import os
import sys

from faststream.kafka import KafkaBroker
from outbox import add_event, open_database, relay

database = open_database("orders.sqlite", "CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, amount INT);")


def place_order(amount: int) -> int:
    """Store an order and its event in one transaction. Either both exist or neither does."""
    with database:
        order_id = database.execute("INSERT INTO orders (amount) VALUES (?)", (amount,)).lastrowid
        assert order_id is not None
        add_event(database, "orders", str(order_id), order_id=order_id, amount=amount)
    return order_id


async def main(count: int) -> None:
    for number in range(count):
        print("order", place_order(100 + number))
    async with KafkaBroker(os.environ.get("OTTLA_BOOTSTRAP", "localhost:9092")) as broker:
        sending = asyncio.create_task(relay(database, broker))
        while database.execute("SELECT count(*) FROM outbox WHERE NOT is_sent").fetchone()[0]:
            await asyncio.sleep(0.05)
        sending.cancel()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
