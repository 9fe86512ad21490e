"""Answers requests: computes the square of a number. Ctrl-C stops it after the requests that it has read."""

import asyncio
import os
import signal

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

BOOTSTRAP = os.environ.get("OTTLA_BOOTSTRAP", "localhost:9092")


async def serve() -> None:
    is_over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, is_over.set)
    consumer = AIOKafkaConsumer(
        "requests", bootstrap_servers=BOOTSTRAP, group_id="servers", auto_offset_reset="earliest"
    )
    producer = AIOKafkaProducer(bootstrap_servers=BOOTSTRAP)
    async with consumer, producer:
        print("waiting for requests", flush=True)
        while not is_over.is_set():
            for requests in (await consumer.getmany(timeout_ms=200)).values():
                for request in requests:
                    headers = dict(request.headers)
                    answer = str(int(request.value) ** 2).encode()
                    await producer.send(
                        headers["reply-to"].decode(), answer, headers=[("correlation-id", headers["correlation-id"])]
                    )


if __name__ == "__main__":
    asyncio.run(serve())
