"""Wraps the worker's client for asyncio: the same calls; each call that blocks runs in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ottla.kmq.client import CLOSE_TIMEOUT_S, KmqClient
from ottla.kmq.config import KmqConfig

if TYPE_CHECKING:
    from confluent_kafka import Message

T = TypeVar("T")


class AsyncKmqClient:
    """`KmqClient` for asyncio. Entering its async context connects the client.

    `processed`, `extend`, `failed` and `reject` never block; they are plain calls, from any task.
    """

    def __init__(
        self,
        properties: str | Mapping[str, Any],
        config: KmqConfig,
        *,
        timeout_ms_of: Callable[[Message], int] | None = None,
        consumer: Mapping[str, Any] | None = None,
        producer: Mapping[str, Any] | None = None,
    ) -> None:
        self.config = config
        self._make = lambda: KmqClient(
            properties, config, timeout_ms_of=timeout_ms_of, consumer=consumer, producer=producer
        )
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="kmq")
        self._client: KmqClient | None = None

    @property
    def client(self) -> KmqClient:
        """The wrapped client. Raises RuntimeError."""
        if self._client is None:
            raise RuntimeError("use the client in `async with`")
        return self._client

    async def _wait(self, call: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, *arguments)

    async def next_batch(self, timeout_s: float = 1.0) -> list[Message]:
        """Like `KmqClient.next_batch`. If the call is cancelled, its messages are redelivered after their time-out."""
        return await self._wait(self.client.next_batch, timeout_s)

    async def messages(self) -> AsyncIterator[Message]:
        """Yield messages one by one, without end."""
        while True:
            for message in await self.next_batch():
                yield message

    def processed(self, message: Message) -> None:
        """As `KmqClient.processed`."""
        self.client.processed(message)

    def extend(self, message: Message, timeout_ms: int | None = None) -> None:
        """As `KmqClient.extend`."""
        self.client.extend(message, timeout_ms)

    def failed(self, message: Message, *, delay_ms: int = 0, reason: str = "") -> None:
        """As `KmqClient.failed`."""
        self.client.failed(message, delay_ms=delay_ms, reason=reason)

    def reject(self, message: Message, *, reason: str = "") -> None:
        """As `KmqClient.reject`."""
        self.client.reject(message, reason=reason)

    async def flush(self, timeout_s: float = CLOSE_TIMEOUT_S) -> int:
        """As `KmqClient.flush`."""
        return await self._wait(self.client.flush, timeout_s)

    async def __aenter__(self) -> Self:
        self._client = await self._wait(self._make)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._wait(self.client.close)
        self._thread.shutdown()
