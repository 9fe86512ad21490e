"""Serves the metrics port: HTTP beside the Kafka port, for monitoring.

`/metrics` is Prometheus text (`metrics`); `/share-groups` and `/share-groups/GROUP` show share groups as JSON
(`share_groups`); `/healthz` and `/readyz` are for supervisors that restart a node and for load balancers.
`metrics_access` decides who may read which of them.

Each connection is answered once and closed. It counts against two limits from its first byte, before the handshake, so
that strangers use up neither descriptors nor memory. A refused request is answered late.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import Counter
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from prometheus_client.exposition import CONTENT_TYPE_LATEST

from ottla.broker.client_identity import Address, Identity
from ottla.machine import Millis
from ottla.metadata.nodes import NodeState
from ottla.server import share_groups
from ottla.server.clocks import moment
from ottla.server.figures import take
from ottla.server.listeners import ServeRefusedError, join_address, split_address
from ottla.server.metrics import render
from ottla.server.metrics_access import LISTENER, SHARE_GROUPS, MetricsAccess

if TYPE_CHECKING:
    from ottla.broker.node import Node

GROUP_PATH: Final = f"{SHARE_GROUPS}/"
PLAIN: Final = "text/plain; charset=utf-8"
SHUT_NAMED_MAX: Final = 20
CONNECTIONS_MAX: Final = 64
CONNECTIONS_PER_ADDRESS_MAX: Final = 16
HEAD_BYTES_MAX: Final = 8192
HEAD_TIMEOUT_S: Final = 10.0
"""Time for the handshake, and for the head of the request."""
ANSWER_TIMEOUT_S: Final = 60.0
CLOSE_TIMEOUT_S: Final = 5.0
ACCEPT_RETRY_S: Final = 1.0
NO_CONNECTION: Final = -2
"""The connection id of clients of this port."""

log = logging.getLogger("ottla.server")


class MetricsListener:
    """The port for scrapes. `start` raises ServeRefusedError; `address` is where it listens, `url` with the scheme."""

    def __init__(self, node: Node, address: str, access: MetricsAccess) -> None:
        self._node = node
        self._access = access
        self._bound: socket.socket | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._open: Counter[str] = Counter()
        """Open connections by the client's address."""
        self.address = address

    @property
    def url(self) -> str:
        return f"{'http' if self._access.tls is None else 'https'}://{self.address}"

    async def start(self) -> None:
        host, port = split_address(self.address)
        try:
            bound = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        except OSError as error:
            raise ServeRefusedError(
                f"Can't serve metrics on {join_address(host, port)}: {error.strerror or error}. "
                "Stop what uses the port, or choose another one with --metrics."
            ) from error
        bound.setblocking(False)
        self._bound = bound
        self.address = join_address(*bound.getsockname()[:2])
        self._begin(self._accept(bound))

    def reload(self) -> None:
        """Use the files of the token and of the certificate as they are now."""
        if self._access.reload():
            log.info("the metrics port uses a new certificate")

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._bound is not None:
            self._bound.close()

    def _begin(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, bound: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, place = await loop.sock_accept(bound)
            except OSError as error:
                log.warning("The metrics port can't accept a connection: %s", error.strerror or error)
                await asyncio.sleep(ACCEPT_RETRY_S)
                continue
            host, port = place[:2]
            if self._open.total() >= CONNECTIONS_MAX or self._open[host] >= CONNECTIONS_PER_ADDRESS_MAX:
                client.close()
                continue
            self._open[host] += 1
            self._begin(self._serve(client, host, port))

    async def _serve(self, client: socket.socket, host: str, port: int) -> None:
        try:
            with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                await self._serve_one(client, host, port)
        finally:
            self._open[host] -= 1
            if not self._open[host]:
                del self._open[host]

    async def _serve_one(self, client: socket.socket, host: str, port: int) -> None:
        loop, tls = asyncio.get_running_loop(), self._access.tls
        reader = asyncio.StreamReader(HEAD_BYTES_MAX, loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        how: dict[str, Any] = {}
        if tls is not None:
            how = {"ssl": tls.context, "ssl_handshake_timeout": HEAD_TIMEOUT_S, "ssl_shutdown_timeout": CLOSE_TIMEOUT_S}
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, client, **how)
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        try:
            async with asyncio.timeout(HEAD_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                writer.write(await self._response(head, host, port))
                await writer.drain()
            writer.close()
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await writer.wait_closed()
        finally:
            transport.abort()

    async def _response(self, head: bytes, host: str, port: int) -> bytes:
        first, *headers = head.split(b"\r\n")
        status, kind, body = await self._answer(first.split(), _authorization(headers), host, port)
        challenge = "WWW-Authenticate: Bearer\r\n" if status.startswith("401") else ""
        start = (
            f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{challenge}"
            "Connection: close\r\n\r\n"
        )
        return start.encode() + (b"" if head.startswith(b"HEAD ") else body)

    async def _answer(self, request: list[bytes], authorization: bytes, host: str, port: int) -> tuple[str, str, bytes]:
        """(status, content type, body) for the words of a request line, and for the header Authorization."""
        if len(request) != 3 or request[0] not in (b"GET", b"HEAD"):
            return "405 Method Not Allowed", PLAIN, b"GET /metrics\n"
        path = request[1].split(b"?")[0].decode("ascii", "replace")
        has_authorizer = self._node.access.authorizer is not None
        refused = self._access.refusal(path, authorization, has_authorizer=has_authorizer)
        if refused is not None:
            status, why = refused
            if status.startswith("401"):
                if authorization:
                    self._note_wrong_token(host, port)
                await asyncio.sleep(self._access.refusal_delay_s)
            return status, PLAIN, f"{why}\n".encode()
        return await self._page(path)

    async def _page(self, path: str) -> tuple[str, str, bytes]:
        """Make the answer for a path: status, content type, body. The client may read it."""
        if path == "/metrics":
            return "200 OK", CONTENT_TYPE_LATEST, await asyncio.to_thread(render, await take(self._node, moment()))
        if path == SHARE_GROUPS or path.startswith(GROUP_PATH):
            group = unquote(path.removeprefix(GROUP_PATH)) if path.startswith(GROUP_PATH) else None
            figures = share_groups.take(self._node, moment(), group)
            runs = await share_groups.take_runs(self._node, figures)
            return "200 OK", "application/json", await asyncio.to_thread(share_groups.as_json, figures, runs)
        if path == "/healthz":
            return "200 OK", PLAIN, b"ok\n"  # a reader of this was answered by the node's own loop
        if path == "/readyz":
            status, sentence = readiness(self._node, moment(), names=not self._access.needs_token)
            return status, PLAIN, sentence.encode()
        return "404 Not Found", PLAIN, b"There are /metrics, /share-groups, /healthz and /readyz\n"

    def _note_wrong_token(self, host: str, port: int) -> None:
        protocol = "PLAINTEXT" if self._access.tls is None else "SSL"
        address = Address(NO_CONNECTION, host, port, LISTENER, protocol)
        self._node.logged_in(Identity(address), "BEARER", why="the token of the metrics port is wrong")


def _authorization(headers: list[bytes]) -> bytes:
    """The value of the header Authorization, empty if there is none, or more than one."""
    values = [value.strip() for name, _, value in (each.partition(b":") for each in headers) if _is_for(name)]
    return values[0] if len(values) == 1 else b""


def _is_for(name: bytes) -> bool:
    return name.lower() == b"authorization"


def readiness(node: Node, now: Millis, *, names: bool = True) -> tuple[str, str]:
    """(status, sentence). Ready: the cluster counts on this node, and at least one partition here is in service, as
    clients may need that one. `names`: the sentence may have names of partitions."""
    refused = "503 Service Unavailable"
    why = _why_out_of_cluster(node, now)
    if why is not None:
        return refused, f"{why}\n"
    partitions = list(node.replicas)
    shut = [each for each in partitions if each.log.failed is not None]
    if partitions and len(shut) == len(partitions):
        return refused, "no partition is in service\n"
    if shut and not names:
        return "200 OK", f"ready, except for {len(shut)} of {len(partitions)} partitions\n"
    if shut:
        named = ", ".join(sorted(each.name for each in shut)[:SHUT_NAMED_MAX])
        return "200 OK", f"ready, except for {len(shut)} of {len(partitions)} partitions: {named}\n"
    return "200 OK", "ready\n"


def _why_out_of_cluster(node: Node, now: Millis) -> str | None:
    """The reason why the cluster does without this node now; None if it does not."""
    if node.membership is None:
        return None
    record = node.membership.record
    if record is None or record.state is not NodeState.ACTIVE:
        return _NOT_ACTIVE[None if record is None else record.state]
    if not node.membership.is_fresh(now):
        return "the node has not reached the metadata store for so long that other nodes may have taken over"
    return None


_NOT_ACTIVE = {
    None: "the node has yet to register with the cluster",
    NodeState.STARTING: "the controller has yet to admit the node to the cluster",
    NodeState.LEAVING: "the node is leaving the cluster",
    NodeState.FENCED: "the cluster has fenced the node",
}
