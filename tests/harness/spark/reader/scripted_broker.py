"""A broker of one partition whose bytes are given, over a real socket. It answers ApiVersions, Metadata, ListOffsets
and Fetch as Kafka does (batches cut off at the limit, aborted transactions of what is sent), and can be told to hang
up, to be no leader any more, or to refuse.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from typing import Any, Self

from ottla.protocol.errors import ErrorCode
from ottla.protocol.framing import decode_request, encode_response
from ottla.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from ottla.protocol.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ottla.protocol.records import decode_records, iter_batches
from ottla.protocol.records.control import ABORT, control_type

VERSIONS = {18: (0, 3), 3: (0, 12), 2: (1, 8), 1: (4, 17)}
TOPIC = "golden"
TOPIC_ID = bytes(range(16))

Behaviour = Callable[[int], str | int]
"""What becomes of the n-th fetch of a node, from 0: "serve", "hang up", or an error code."""


class ScriptedCluster:
    """Nodes of one partition. `records` is its log, `aborted` as Kafka answers it at offset 0."""

    def __init__(
        self, records: bytes, *, aborted: list[tuple[int, int]] = (), high_watermark: int, last_stable_offset: int
    ) -> None:
        self.records = records
        self.high_watermark = high_watermark
        self.last_stable_offset = last_stable_offset
        self.leader = 1
        self.nodes: dict[int, ScriptedNode] = {}
        self.aborted = [(producer, first, self._end_of(producer, first)) for producer, first in aborted]

    def _end_of(self, producer_id: int, first: int) -> int:
        for header, pos in iter_batches(self.records):
            if header.is_control and header.producer_id == producer_id and header.base_offset > first:
                assert control_type(decode_records(memoryview(self.records), pos)[0]) == ABORT
                return header.base_offset
        raise AssertionError("an aborted transaction without its end")

    def part(self, offset: int, max_bytes: int, committed: bool) -> PartitionData:
        """The bytes from the batch on that holds `offset`, a whole one at least, cut off where the room ends."""
        limit = self.last_stable_offset if committed else self.high_watermark
        begin = end = None
        last = -1
        for header, pos in iter_batches(self.records):
            if header.last_offset >= offset and header.base_offset < limit:
                begin = pos if begin is None else begin
                end, last = pos + header.size_in_bytes, header.last_offset
                if end - begin > max_bytes:
                    first = begin == pos
                    end = end if first else begin + max_bytes
                    break
        gone = [(p, first) for p, first, end in self.aborted if first <= last and end >= offset]
        return PartitionData(
            0,
            0,
            self.high_watermark,
            self.last_stable_offset,
            0,
            aborted_transactions=[AbortedTransaction(*each) for each in gone] if committed else None,
            records=b"" if begin is None else self.records[begin:end],
        )

    def metadata(self) -> MetadataResponse:
        brokers = [MetadataResponseBroker(node.node_id, "127.0.0.1", node.port) for node in self.nodes.values()]
        partition = MetadataResponsePartition(0, 0, self.leader, 0, [1], [1], [])
        return MetadataResponse(0, brokers, "c", 1, [MetadataResponseTopic(0, TOPIC, TOPIC_ID, False, [partition])])


class ScriptedNode:
    """One node; a context manager. `fetches` are the requests it got."""

    def __init__(
        self,
        cluster: ScriptedCluster,
        behave: Behaviour = lambda _: "serve",
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.cluster = cluster
        self.tls = tls
        self.behave = behave
        self.node_id = len(cluster.nodes) + 1
        self.fetches: list[FetchRequest] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.accepted: list[socket.socket] = []
        cluster.nodes[self.node_id] = self

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in (self.listener, *self.accepted):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self.listener.accept()
                self.accepted.append(peer)
                threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        with contextlib.suppress(OSError, struct.error), peer if self.tls is None else self._wrapped(peer) as peer:
            stream = peer.makefile("rb")
            while True:
                (length,) = struct.unpack(">i", stream.read(4))
                header, request = decode_request(memoryview(stream.read(length)))
                answer = self._answer(header.api_key, request)
                if answer is None:
                    return
                peer.sendall(encode_response(header, answer))

    def _wrapped(self, peer: socket.socket) -> socket.socket:
        assert self.tls is not None
        return self.tls.wrap_socket(peer, server_side=True)

    def _answer(self, key: int, request: Any) -> Any:
        if key == 18:
            return ApiVersionsResponse(0, [ApiVersion(each, *bounds) for each, bounds in VERSIONS.items()])
        if key == 3:
            return self.cluster.metadata()
        if key == 2:
            at = request.topics[0].partitions[0].timestamp
            end = self.cluster.last_stable_offset if request.isolation_level else self.cluster.high_watermark
            row = ListOffsetsPartitionResponse(0, 0, -1, 0 if at == -2 else end, 0)
            return ListOffsetsResponse(0, [ListOffsetsTopicResponse(TOPIC, [row])])
        outcome = self.behave(len(self.fetches))
        self.fetches.append(request)
        if outcome == "hang up":
            return None
        asked = request.topics[0].partitions[0]
        if isinstance(outcome, int):
            part = PartitionData(0, outcome, -1, -1, -1)
        elif self.cluster.leader != self.node_id:
            part = PartitionData(0, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1, -1)
        else:
            room = min(asked.partition_max_bytes, request.max_bytes)
            part = self.cluster.part(asked.fetch_offset, room, bool(request.isolation_level))
        return FetchResponse(0, 0, 0, [FetchableTopicResponse(TOPIC, TOPIC_ID, [part])])
