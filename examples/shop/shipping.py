"""The shipping service: it ships each paid order once."""

import asyncio
import os

from faststream import AckPolicy, FastStream
from faststream.kafka import KafkaBroker
from outbox import add_event, is_first, open_database, relay
from pydantic import BaseModel

broker = KafkaBroker(os.environ.get("OTTLA_BOOTSTRAP", "localhost:9092"))
app = FastStream(broker)
database = open_database("shipping.sqlite", "CREATE TABLE IF NOT EXISTS shipments (order_id INT);")
sending: set[asyncio.Task[None]] = set()


class OrderPaid(BaseModel):
    event_id: str
    order_id: int


@broker.subscriber("payments", group_id="shipping", auto_offset_reset="earliest", ack_policy=AckPolicy.NACK_ON_ERROR)
async def ship(payment: OrderPaid) -> None:
    with database:
        if is_first(database, payment.event_id):
            database.execute("INSERT INTO shipments VALUES (?)", (payment.order_id,))
            add_event(database, "shipments", str(payment.order_id), order_id=payment.order_id)


@app.after_startup
async def send_events() -> None:
    sending.add(asyncio.create_task(relay(database, broker)))


if __name__ == "__main__":
    asyncio.run(app.run())
