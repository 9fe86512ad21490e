"""The payment service: it collects the money of each order once, and reports that with an event."""

import asyncio
import os

from faststream import AckPolicy, FastStream
from faststream.kafka import KafkaBroker
from outbox import add_event, is_first, open_database, relay
from pydantic import BaseModel

broker = KafkaBroker(os.environ.get("OTTLA_BOOTSTRAP", "localhost:9092"))
app = FastStream(broker)
database = open_database("payments.sqlite", "CREATE TABLE IF NOT EXISTS payments (order_id INT, amount INT);")
sending: set[asyncio.Task[None]] = set()


class OrderPlaced(BaseModel):
    event_id: str
    order_id: int
    amount: int


@broker.subscriber("orders", group_id="payments", auto_offset_reset="earliest", ack_policy=AckPolicy.NACK_ON_ERROR)
async def collect(order: OrderPlaced) -> None:
    """Record the payment, its event, and that the order was handled, in one transaction."""
    with database:
        if is_first(database, order.event_id):
            database.execute("INSERT INTO payments VALUES (?, ?)", (order.order_id, order.amount))
            add_event(database, "payments", str(order.order_id), order_id=order.order_id)


@app.after_startup
async def send_events() -> None:
    sending.add(asyncio.create_task(relay(database, broker)))


if __name__ == "__main__":
    asyncio.run(app.run())
