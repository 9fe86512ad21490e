"""A segment that can't be read when an answer is sent: one partition's matter, at the latest the second time."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path
from typing import Any

import pytest

from ottla.client import Client
from ottla.protocol.errors import ErrorCode
from ottla.protocol.framing import RequestHeader, decode_response, encode_request
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.records.record import Record, build_batch
from ottla.testing import EmbeddedBroker


def fetch(port: int, offset: int) -> dict[str, Any]:
    """Both topics in one request, on a connection of its own. Raises ConnectionError where that is closed."""
    topics = [FetchTopic(name, partitions=[FetchPartition(0, -1, offset, -1, -1, 1 << 22)]) for name in ("good", "bad")]
    request = FetchRequest(topics=topics, max_wait_ms=0, min_bytes=0, max_bytes=1 << 23)
    with socket.create_connection(("127.0.0.1", port), 20) as sock:
        sock.sendall(encode_request(RequestHeader(1, 12, 1, "t"), request))
        found = bytearray()
        while len(found) < 4 or len(found) < 4 + struct.unpack_from(">i", found)[0]:
            chunk = sock.recv(1 << 16)
            if not chunk:
                raise ConnectionError
            found += chunk
    _, answer = decode_response(1, 12, memoryview(found)[4:])
    return {topic.topic: topic.partitions[0] for topic in answer.responses}


@pytest.mark.parametrize("size", [1_000, 900_000])
def test_a_read_error_while_an_answer_is_sent(size: int, tmp_path: Path) -> None:
    """Of the first answer the head may have left; the next one tells the error and has what the others have."""
    with EmbeddedBroker(directory=tmp_path) as broker:
        for topic in ("good", "bad"):
            broker.create_topic(topic, partitions=1)
        with Client(broker.bootstrap_servers) as client:

            def produce() -> None:
                for topic in ("good", "bad"):
                    client.produce_raw(topic, 0, build_batch([Record(key=None, value=bytes(size), timestamp_ms=0)]))

            produce()
            fetch(broker.port, 0)  # where it ended is remembered: nothing is read to find the next offset
            produce()
        segment = str(tmp_path / "bad-0" / f"{0:020d}.log")
        (fd,) = [int(each.name) for each in Path("/proc/self/fd").iterdir() if points_to(each, segment)]
        intact, directory = os.dup(fd), os.open(tmp_path, os.O_RDONLY)
        try:
            os.dup2(directory, fd)  # reading a directory is an error
            with pytest.raises(ConnectionError):
                fetch(broker.port, 1)
            told = fetch(broker.port, 1)
            assert told["bad"].error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert told["good"].error_code == 0
            assert len(told["good"].records) > size
            os.dup2(intact, fd)
            assert len(fetch(broker.port, 1)["bad"].records) > size
        finally:
            os.dup2(intact, fd)
            os.close(intact)
            os.close(directory)


def points_to(link: Path, path: str) -> bool:
    try:
        return os.readlink(link) == path
    except FileNotFoundError:
        return False
