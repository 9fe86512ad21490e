"""Answers requests: computes the square of a number."""

import asyncio
import contextlib
import os

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

BOOTSTRAP = os.environ.get("OTTLA_BOOTSTRAP", "localhost:9092")


async def serve() -> None:
    consumer = AIOKafkaConsumer(
        "requests", bootstrap_servers=BOOTSTRAP, group_id="servers", auto_offset_reset="earliest"
    )
    producer = AIOKafkaProducer(bootstrap_servers=BOOTSTRAP)
    async with consumer, producer:
        print("waiting for requests", flush=True)
        async for request in consumer:
            headers = dict(request.headers)
            answer = str(int(request.value) ** 2).encode()
            await producer.send(
                headers["reply-to"].decode(), answer, headers=[("correlation-id", headers["correlation-id"])]
            )


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve())
