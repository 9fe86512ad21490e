"""Runs the process that decodes and encodes values, and starts another one if it ends or takes too long."""

from __future__ import annotations

import base64
import json
import os
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ottla.schemas.registry import Bounds, Schema

START_S: Final = 60.0
RESTART_S: Final = 0.5
"""Seconds that an end of the process takes from the time of a user's request, so that it cannot cause many ends."""
VALUE_S: Final = 20.0
"""Seconds after which the process is ended; its own limit of CPU time is meant to be reached before."""
SCHEMAS_MAX: Final = 100
"""Schemas that one process gets. Then another one starts, without the old ones."""
_BATCH_BYTES: Final = 1 << 20
_READ_BYTES: Final = 1 << 16
_LINE_BYTES_MAX: Final = 64 << 20
"""More than the longest answer: each of its characters takes at most twelve bytes."""
BROKEN: Final = "the decoder used up its memory or CPU time on it"


class Content(NamedTuple):
    """The bytes of a value, and of Protobuf the position of its type."""

    indexes: tuple[int, ...]
    data: bytes


class Reply(NamedTuple):
    """The value as JSON and the name of its type, or the reason why there is none."""

    json: str | None
    name: str
    why: str


class Encoding(NamedTuple):
    """The bytes of a value, of Protobuf the position of its type, and the name of its type; or the reason why there are
    none."""

    data: bytes | None
    indexes: tuple[int, ...] | None
    name: str
    why: str


class WorkerEndedError(Exception):
    """The process ended, or did not answer in time; the text is the end of a sentence."""

    def __init__(self, why: str = BROKEN) -> None:
        super().__init__(why)


class DecodingProcess:
    """A process that decodes and encodes values, for one thread at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._sent: set[int | str] = set()
        self._received = b""

    def decode(self, schema: Schema, contents: Sequence[Content], bounds: Bounds) -> list[Reply | None]:
        """A reply for each value; None if there was no time left for it. The time is taken from the bounds."""
        replies: list[Reply | None] = []
        began = time.monotonic()
        if not self._lock.acquire(timeout=max(0.0, bounds.seconds_left)):
            bounds.seconds_left = 0.0
            return [None] * len(contents)
        bounds.seconds_left -= time.monotonic() - began
        try:
            while len(replies) < len(contents) and bounds.seconds_left > 0 and schema.id not in bounds.broken:
                try:
                    self._batch(schema, contents, replies, bounds)
                except WorkerEndedError as ended:
                    self._end()
                    bounds.broken[schema.id] = str(ended)
                    bounds.seconds_left -= RESTART_S
                    replies.append(Reply(None, "", str(ended)))
        finally:
            self._lock.release()
        why = bounds.broken.get(schema.id)
        left = len(contents) - len(replies)
        return replies + [None if why is None else Reply(None, "", why)] * left

    def encode(self, schema: Schema, type: str | Sequence[int], text: str, bounds: Bounds) -> Encoding:
        """The bytes of a value of JSON. `type` is of Protobuf: a name, "" for the first, or a position."""
        began = time.monotonic()
        if not self._lock.acquire(timeout=max(0.0, bounds.seconds_left)):
            bounds.seconds_left = 0.0
            return Encoding(None, None, "", "there was no time left to encode it")
        try:
            bounds.seconds_left -= time.monotonic() - began
            type = type if isinstance(type, str) else list(type)
            (told,) = self._exchanged(schema, {"texts": [(type, text)]}, 1, bounds)
        except WorkerEndedError as ended:
            self._end()
            return Encoding(None, None, "", str(ended))
        finally:
            self._lock.release()
        data, indexes = told.get("data"), told.get("indexes")
        return Encoding(
            None if data is None else base64.b64decode(data),
            None if indexes is None else tuple(indexes),
            told.get("name", ""),
            told.get("why", ""),
        )

    def close(self) -> None:
        with self._lock:
            self._end()

    def _batch(self, schema: Schema, contents: Sequence[Content], replies: list[Reply | None], bounds: Bounds) -> None:
        """Add the replies to some of the next values. Raises WorkerEndedError."""
        size = 0
        values: list[tuple[tuple[int, ...], str]] = []
        for each in contents[len(replies) :]:
            size += len(each.data)
            if values and size > _BATCH_BYTES:
                break
            values.append((each.indexes, base64.b64encode(each.data).decode()))
        for told in self._exchanged(schema, {"values": values}, len(values), bounds):
            replies.append(Reply(told.get("json"), told.get("name", ""), told.get("why", "")))

    def _exchanged(
        self, schema: Schema, asked: Mapping[str, object], count: int, bounds: Bounds
    ) -> Iterator[dict[str, Any]]:
        """The answers to a request, as they arrive. Raises WorkerEndedError."""
        process = self._started(schema)
        began = time.monotonic()
        sent = schema.id in self._sent
        described = None if sent else {"kind": schema.kind, "text": schema.text, "references": schema.references}
        self._sent.add(schema.id)
        try:
            assert process.stdin is not None
            process.stdin.write(json.dumps({"key": str(schema.id), "schema": described, **asked}).encode() + b"\n")
            process.stdin.flush()
            for _ in range(count):
                yield json.loads(self._line(process, VALUE_S))
        except (OSError, ValueError):
            raise WorkerEndedError from None
        finally:
            bounds.seconds_left -= time.monotonic() - began

    def _started(self, schema: Schema) -> subprocess.Popen[bytes]:
        """The process, ready for the schema. Starting costs the user's request nothing of its time."""
        if len(self._sent) >= SCHEMAS_MAX and schema.id not in self._sent:
            self._end()
        if self._process is None:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "ottla.schemas.worker"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                )
                self._line(self._process, START_S)
            except (OSError, WorkerEndedError):
                raise WorkerEndedError("the decoder does not start") from None
        return self._process

    def _line(self, process: subprocess.Popen[bytes], timeout_s: float) -> bytes:
        """The next line that the process writes. Raises WorkerEndedError."""
        assert process.stdout is not None
        if b"\n" in self._received:
            line, _, self._received = self._received.partition(b"\n")
            return line
        parts, size = [self._received], 0
        until = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while b"\n" not in parts[-1]:
                if not selector.select(max(0.0, until - time.monotonic())):
                    raise WorkerEndedError
                read = os.read(process.stdout.fileno(), _READ_BYTES)
                parts.append(read)
                size += len(read)
                if not read or size > _LINE_BYTES_MAX:
                    raise WorkerEndedError
        line, _, self._received = b"".join(parts).partition(b"\n")
        return line

    def _end(self) -> None:
        process, self._process = self._process, None
        self._sent, self._received = set(), b""
        if process is not None:
            process.kill()
            process.communicate()
