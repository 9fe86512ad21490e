"""Serves the part of a schema registry's HTTP interface that clients use to register schemas and to get them."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote, urlsplit


@dataclass
class SmallRegistry:
    """Schemas by number, GUID and subject. `answers` replaces the answer to a path: status, headers, body; a body of
    None closes the connection. `asked` are the paths of GETs, `logins` their Authorization headers, `posted` the
    paths of POSTs. If it does not
    serialize, it gives schemas of Protobuf as they were registered."""

    address: str = ""
    schemas: list[dict[str, Any]] = field(default_factory=list)
    answers: dict[str, tuple[int, dict[str, str], bytes | None]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    logins: list[str | None] = field(default_factory=list)
    serializes: bool = True
    posted: list[str] = field(default_factory=list)

    def add(self, schema: str, kind: str = "AVRO", subject: str = "s", references: list[dict] | None = None) -> int:
        """The number of a schema, new or known."""
        found: dict[str, Any] = {"schema": schema, "schemaType": kind, "subject": subject}
        if references:
            found["references"] = references
        if found not in self.schemas:
            self.schemas.append(found)
        return self.schemas.index(found) + 1

    def described(self, number: int) -> dict[str, Any]:
        """Its facts, as answers have them."""
        found = self.schemas[number - 1]
        before = [each for each in self.schemas[:number] if each["subject"] == found["subject"]]
        return {"id": number, "guid": self.guid(number), "version": len(before), **found}

    def guid(self, number: int) -> str:
        return str(uuid.UUID(int=number))

    def get(self, path: str, query: str) -> dict[str, Any] | None:
        parts = [unquote(each) for each in path.strip("/").split("/")]
        match parts:
            case ["schemas", ("ids" | "guids") as by, id]:
                number = int(id) if by == "ids" else uuid.UUID(id).int
                found = self.described(number) if 0 < number <= len(self.schemas) else None
            case ["subjects", subject, "versions", version]:
                every = [self.described(each + 1) for each in range(len(self.schemas))]
                of_subject = [each for each in every if each["subject"] == subject]
                if version == "latest":
                    of_subject = of_subject[-1:]
                else:
                    of_subject = [each for each in of_subject if str(each["version"]) == version]
                found = of_subject[0] if of_subject else None
            case _:
                return None
        if found is None or found["schemaType"] != "PROTOBUF" or not self.serializes:
            return found
        if query != "format=serialized":
            found["schema"] = 'syntax = "proto3"; // the source text'
        return found


class _Handler(BaseHTTPRequestHandler):
    registry: SmallRegistry

    def do_GET(self) -> None:
        self.registry.asked.append(self.path)
        self.registry.logins.append(self.headers["Authorization"])
        if self.path in self.registry.answers:
            status, headers, body = self.registry.answers[self.path]
            if body is not None:
                self._send(status, body, headers)
            return
        parts = urlsplit(self.path)
        found = self.registry.get(parts.path, parts.query)
        if found is None:
            self._send(404, b'{"error_code": 40403, "message": "Schema not found"}')
        else:
            self._send(200, json.dumps(found).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.registry.posted.append(self.path)
        subject = unquote(urlsplit(self.path).path.split("/")[2])
        number = self.registry.add(body["schema"], body.get("schemaType", "AVRO"), subject, body.get("references"))
        self._send(200, json.dumps(self.registry.described(number)).encode())

    def _send(self, status: int, body: bytes, headers: Mapping[str, str] = MappingProxyType({})) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Stay silent."""


@contextmanager
def small_registry() -> Iterator[SmallRegistry]:
    """A registry on a port of its own."""
    registry = SmallRegistry()
    handler = type("Handler", (_Handler,), {"registry": registry})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    registry.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
