"""Sends requests and waits for their replies: `python client.py 2 3 4`."""

import asyncio
import os
import sys
import uuid
from types import TracebackType

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

BOOTSTRAP = os.environ.get("OTTLA_BOOTSTRAP", "localhost:9092")
REPLIES = TopicPartition("replies", 0)


class Requests:
    """Matches replies to requests by their correlation ids. Each client reads all replies and keeps its own."""

    def __init__(self) -> None:
        self._producer = AIOKafkaProducer(bootstrap_servers=BOOTSTRAP)
        self._consumer = AIOKafkaConsumer(bootstrap_servers=BOOTSTRAP)
        self._waiting: dict[bytes, asyncio.Future[bytes]] = {}

    async def __aenter__(self) -> "Requests":
        await self._producer.start()
        await self._consumer.start()
        self._consumer.assign([REPLIES])
        await self._consumer.seek_to_end(REPLIES)
        await self._consumer.position(REPLIES)  # read from here, before the first request is sent
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reading.cancel()
        await self._consumer.stop()
        await self._producer.stop()

    async def ask(self, value: bytes, timeout_s: float = 30) -> bytes:
        """Send a request and return its reply. Raises TimeoutError."""
        correlation_id = uuid.uuid4().bytes
        reply = self._waiting[correlation_id] = asyncio.get_running_loop().create_future()
        headers = [("reply-to", REPLIES.topic.encode()), ("correlation-id", correlation_id)]
        try:
            await self._producer.send("requests", value, headers=headers)
            return await asyncio.wait_for(reply, timeout_s)
        finally:
            del self._waiting[correlation_id]

    async def _read(self) -> None:
        async for message in self._consumer:
            waiting = self._waiting.get(dict(message.headers)["correlation-id"])
            if waiting is not None and not waiting.done():
                waiting.set_result(message.value)


async def main(numbers: list[str]) -> None:
    async with Requests() as requests:
        replies = await asyncio.gather(*(requests.ask(number.encode()) for number in numbers))
        for number, reply in zip(numbers, replies, strict=True):
            print(number, "->", reply.decode())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
