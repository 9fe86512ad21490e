"""Other queues beside a share group: RabbitMQ's quorum queue and NATS JetStream, where they are installed.

One producer that waits for confirmations in the end, then one consumer; 200 B, kept on disk, each message acknowledged
by itself. Needed: `rabbitmq-server` or `nats-server` (both are Debian packages) and the Python clients `pika` and
`nats-py`, which are no dependencies of the project. All three sides are clients in Python, librdkafka's core aside:
with pika and nats-py the client is the bottleneck, so look at the server's CPU per message, too.

The servers listen on loopback, on ports that the system chose, and keep everything below the run's directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import AcknowledgeType

from bench.brokers import BenchFailedError, Broker, default_data, wait_until
from bench.figures import Figures, cpu_figures
from bench.queues.members import TIMEOUT_S, VALUE_BYTES, Member, fill, new_group
from tools.node_process import free_port

START_TIMEOUT_S = 60
UNCONFIRMED_MAX = 10_000
PREFETCH = 1_000
SHARE_TIMES = 10
"""A share group gets so many times the messages of the others: its window would be too short for a clock."""
RABBITMQ = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""Debian's /usr/sbin/rabbitmq-server changes user and directory; this one is what it ends up with."""


class Server(Broker):
    """Somebody else's server as a process of ours, in a process group of its own."""

    needs = ""
    package = ""

    def __init__(self, directory: Path) -> None:
        super().__init__(type(self).__name__.lower(), f"127.0.0.1:{free_port()}")
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.process: subprocess.Popen[bytes] | None = None

    @classmethod
    def missing(cls) -> str | None:
        """What is not installed."""
        if cls.binary() is None:
            return f"{cls.needs} is not installed"
        return None if importlib.util.find_spec(cls.package) else f"the Python client {cls.package} is not installed"

    @classmethod
    def binary(cls) -> str | None:
        return shutil.which(cls.needs)

    def command(self) -> list[str]:
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        return {}

    def round(self, count: int) -> tuple[float, float]:
        """Seconds to send, and to have and acknowledge, so many messages."""
        raise NotImplementedError

    def start(self) -> None:
        with (self.directory / "log").open("wb") as log:
            self.process = subprocess.Popen(
                self.command(),
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment()},
                cwd=self.directory,
                start_new_session=True,
            )
        self.pid = self.process.pid
        wait_until(self._listens, START_TIMEOUT_S, f"{self.name} listens")

    def _listens(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise BenchFailedError(f"{self.name} did not start; see {self.directory / 'log'}")
        with contextlib.suppress(OSError):
            socket.create_connection((self.host, self.port), 1).close()
            return True
        return False

    def stop(self) -> None:
        process, self.process, self.pid = self.process, None, None
        if process is not None:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


class RabbitMQ(Server):
    """A quorum queue, publisher confirms, basic.ack for each message."""

    needs, package = "rabbitmq-server", "pika"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._epmd_port = free_port()

    @classmethod
    def binary(cls) -> str | None:
        return str(RABBITMQ) if RABBITMQ.exists() else shutil.which(cls.needs)

    def command(self) -> list[str]:
        binary = self.binary()
        assert binary is not None
        return [binary]

    def environment(self) -> dict[str, str]:
        here = str(self.directory)
        (self.directory / "plugins").write_text("[].\n")
        return {
            "HOME": here,
            "RABBITMQ_NODENAME": f"bench{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": f"{here}/mnesia",
            "RABBITMQ_LOG_BASE": f"{here}/logs",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{here}/plugins",
            "RABBITMQ_CONFIG_FILE": f"{here}/none",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }

    def stop(self) -> None:
        super().stop()
        if (epmd := shutil.which("epmd")) is not None:  # the name server that it started goes by its port
            command = [epmd, "-port", str(self._epmd_port), "-kill"]
            subprocess.run(
                command, capture_output=True, check=False, env={**os.environ, "ERL_EPMD_ADDRESS": "127.0.0.1"}
            )

    def round(self, count: int) -> tuple[float, float]:
        return PikaRound(self.port, count).run()


class PikaRound:
    """pika's asynchronous connection: the blocking one waits for the confirmation of each message."""

    def __init__(self, port: int, count: int) -> None:
        import pika

        self._pika, self._count, self._queue = pika, count, f"bench-{time.time_ns()}"
        self._sent = self._confirmed = self._seen = 0
        self._began = self._produced_s = self._consumed_s = 0.0
        self._failed = ""
        parameters = pika.ConnectionParameters("127.0.0.1", port)
        self._connection = pika.SelectConnection(
            parameters,
            on_open_callback=lambda connection: connection.channel(on_open_callback=self._opened),
            on_open_error_callback=lambda _, error: self._end(f"no connection: {error}"),
            on_close_callback=lambda connection, _: connection.ioloop.stop(),
        )

    def run(self) -> tuple[float, float]:
        self._connection.ioloop.call_later(TIMEOUT_S, lambda: self._end("it took too long"))
        self._connection.ioloop.start()
        if self._failed:
            raise BenchFailedError(f"rabbitmq: {self._failed}")
        return self._produced_s, self._consumed_s

    def _end(self, failed: str = "") -> None:
        self._failed = failed
        if self._connection.is_open:
            self._connection.close()
        else:
            self._connection.ioloop.stop()

    def _opened(self, channel: Any) -> None:
        self._channel = channel
        channel.add_on_close_callback(lambda _, why: None if self._seen >= self._count else self._end(str(why)))
        channel.queue_declare(
            self._queue, durable=True, arguments={"x-queue-type": "quorum"}, callback=lambda _: self._confirm()
        )

    def _confirm(self) -> None:
        self._channel.confirm_delivery(self._on_confirm, callback=lambda _: self._start())

    def _start(self) -> None:
        self._began = time.perf_counter()
        self._send()

    def _send(self) -> None:
        value, properties = b"x" * VALUE_BYTES, self._pika.BasicProperties(delivery_mode=2)
        for _ in range(min(500, self._count - self._sent, UNCONFIRMED_MAX - self._sent + self._confirmed)):
            self._channel.basic_publish("", self._queue, value, properties)
            self._sent += 1
        if self._sent < self._count:
            self._connection.ioloop.call_later(0, self._send)

    def _on_confirm(self, frame: Any) -> None:
        method = frame.method
        if method.NAME == "Basic.Nack":
            self._end("a message was refused")
        self._confirmed = method.delivery_tag if method.multiple else self._confirmed + 1
        if self._confirmed >= self._count and not self._produced_s:
            self._produced_s = time.perf_counter() - self._began
            self._channel.basic_qos(prefetch_count=PREFETCH, callback=lambda _: self._consume())

    def _consume(self) -> None:
        self._began = time.perf_counter()
        self._channel.basic_consume(self._queue, self._on_message)

    def _on_message(self, channel: Any, method: Any, _properties: Any, _body: bytes) -> None:
        channel.basic_ack(method.delivery_tag)
        self._seen += 1
        if self._seen == self._count:
            self._consumed_s = time.perf_counter() - self._began
            channel.queue_delete(self._queue, callback=lambda _: self._end())


class NATS(Server):
    """A JetStream stream of files, a pull consumer, an ack for each message."""

    needs, package = "nats-server", "nats"

    def command(self) -> list[str]:
        binary = self.binary()
        assert binary is not None
        return [binary, "-a", self.host, "-p", str(self.port), "-js", "-sd", str(self.directory / "store")]

    def round(self, count: int) -> tuple[float, float]:
        return asyncio.run(asyncio.wait_for(nats_round(self.address, count), TIMEOUT_S))


async def nats_round(address: str, count: int) -> tuple[float, float]:
    import nats

    connection = await nats.connect(f"nats://{address}")
    try:
        stream, value = f"bench-{time.time_ns()}", b"x" * VALUE_BYTES
        jetstream = connection.jetstream(publish_async_max_pending=UNCONFIRMED_MAX)
        await jetstream.add_stream(name=stream, subjects=[stream])
        began = time.perf_counter()
        for _ in range(count):
            await jetstream.publish_async(stream, value)
        await jetstream.publish_async_completed()
        produced_s = time.perf_counter() - began
        subscription = await jetstream.pull_subscribe(stream, "worker")
        seen, began = 0, time.perf_counter()
        while seen < count:
            for message in await subscription.fetch(min(PREFETCH, count - seen), timeout=10):
                await message.ack()
                seen += 1
        await connection.flush()
        consumed_s = time.perf_counter() - began
        await jetstream.delete_stream(stream)
    finally:
        await connection.close()
    return produced_s, consumed_s


def share_round(broker: Broker, count: int) -> tuple[float, float]:
    """The same by librdkafka and a share group of one."""
    with broker.topic() as topic:
        began = time.perf_counter()
        fill(broker, topic, count)
        produced_s = time.perf_counter() - began
        member = Member(broker, new_group(broker), explicit=True)
        member.consumer.subscribe([topic])
        seen, began, deadline = 0, 0.0, time.monotonic() + TIMEOUT_S
        while seen < count:
            batch = member.take(0.5)
            began = began or (time.perf_counter() if batch else 0.0)  # joining does not count: nobody else has to
            for message in batch:
                member.consumer.acknowledge(message, AcknowledgeType.ACCEPT)
            seen += len(batch)
            if time.monotonic() > deadline:
                raise BenchFailedError(f"the share group had {seen} of {count} records in {TIMEOUT_S} s")
        member.consumer.commit_sync(10)
        consumed_s = time.perf_counter() - began
        member.consumer.close()
    return produced_s, consumed_s


KINDS: tuple[type[Server], ...] = (RabbitMQ, NATS)


def describe() -> str:
    absent = [f"{kind.__name__}: {why}" for kind in KINDS if (why := kind.missing())]
    said = "a share group beside RabbitMQ's quorum queue and NATS JetStream: 200 B, each message acknowledged"
    return f"{said} ({'; '.join(absent)})" if absent else said


class Others:
    """The servers that are installed, started when they are first needed."""

    def __init__(self, data: str | None) -> None:
        self._data = data
        self._base: Path | None = None
        self._running: list[Server] = []

    def close(self) -> None:
        for server in self._running:
            server.stop()
        if self._base is not None:
            shutil.rmtree(self._base, ignore_errors=True)

    def measure(self, broker: Broker, count: int) -> Figures:
        """One round: the broker, then the others unless it is a peer, with so many messages; the broker with more."""
        figures = self._one("share", broker, SHARE_TIMES * count, functools.partial(share_round, broker))
        if broker.name == "peer":
            return figures
        if self._base is None:
            self._base = Path(tempfile.mkdtemp(prefix="ottla-bench-", dir=self._data or default_data()))
            for kind in KINDS:
                if kind.missing() is None:
                    server = kind(self._base / kind.__name__.lower())
                    self._running.append(server)
                    server.start()
        for server in self._running:
            figures |= self._one(server.name, server, count, server.round)
            for what in ("produce", "consume"):
                ratio = figures[f"share {what} msg/s"] / figures[f"{server.name} {what} msg/s"]
                figures[f"share / {server.name} {what} /s"] = ratio
        return figures

    def _one(self, name: str, broker: Broker, count: int, run: Callable[[int], tuple[float, float]]) -> Figures:
        cpu = broker.cpu_s()
        produced_s, consumed_s = run(count)
        figures = {f"{name} produce msg/s": count / produced_s, f"{name} consume msg/s": count / consumed_s}
        return figures | cpu_figures(name, broker, cpu, "s/M msg", count / 1e6)
