"""From a decoded answer to a value that every correct broker gives: no ids, clocks, addresses or hash order.

What is replaced, and by what:
    the run's own prefix in names           nothing ("r1f3.orders" -> "orders")
    this broker's node id, host and port    "<node>", "<host>", "<port>"
    cluster id, directory ids               "<cluster>"
    topic, member and producer ids          "<topic orders>", "<member a>", "<producer 1>", as the scenario learnt them
    a time within an hour of now            "<now>"
    throttle_time_ms                        left out
    a sentence (error_message)              "~" and the sentence, whose words do not count
Fields at the protocol's default are left out, except error codes, which are written by name. Lists of structs are
sorted.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from ottla.protocol.errors import ErrorCode

from . import batches
from .messages import default_of, fields_of

NODE_FIELDS = {
    "node_id",
    "leader_id",
    "broker_id",
    "controller_id",
    "replica_nodes",
    "isr_nodes",
    "preferred_read_replica",
}
SHOWN = {"error_code", "partition_index", "partition", "index"}
DROPPED = {"throttle_time_ms"}
TEXTS = {"error_message", "batch_index_error_message", "documentation"}
HOUR_MS = 3_600_000
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


@dataclass
class Names:
    """What one run of one scenario has learnt about the broker's own inventions."""

    token: str
    node_id: int = -1
    host: str = ""
    port: int = -1
    ports: set[int] = field(default_factory=set)
    """Those of all nodes where there are several."""
    cluster_id: str = ""
    log_dirs: set[str] = field(default_factory=set)
    uuids: dict[bytes, str] = field(default_factory=dict)
    strings: dict[str, str] = field(default_factory=dict)
    numbers: dict[tuple[str, int], str] = field(default_factory=dict)
    """(field name, value) -> placeholder: producer ids and fetch session ids."""

    def learn_topic(self, topic_id: bytes, name: str) -> None:
        if any(topic_id):
            self.uuids.setdefault(bytes(topic_id), f"<topic {name.replace(self.token, '')}>")

    def learn_member(self, member_id: str) -> None:
        if member_id and member_id not in self.strings and _UUID.search(member_id):
            self.strings[member_id] = f"<member {1 + sum(v.startswith('<member') for v in self.strings.values())}>"

    def learn_number(self, name: str, value: int) -> None:
        if value > (0 if name == "session_id" else -1) and (name, value) not in self.numbers:
            count = sum(n == name for n, _ in self.numbers)
            self.numbers[name, value] = f"<{name} {count + 1}>"


def normalise(message: Any, names: Names, version: int) -> Any:
    """A JSON value; dict for a message, with the fields that version has."""
    return _struct(message, names, version)


def _struct(message: Any, names: Names, version: int) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name in fields_of(type(message)):
        value = getattr(message, name)
        if name in DROPPED or (value == default_of(type(message), name) and name not in SHOWN):
            continue
        made = _value(name, value, names, version)
        if made not in ({}, "<zero>"):
            out[name] = made
    return out


def _value(name: str, value: Any, names: Names, version: int) -> Any:
    match value:
        case None | bool() | float():
            return value
        case int() if name.endswith("error_code"):
            return ErrorCode(value).name
        case int() if name in NODE_FIELDS and value == names.node_id:
            return "<node>"
        case int() if name == "port" and (value == names.port or value in names.ports):
            return "<port>"
        case int() if (name, value) in names.numbers:
            return names.numbers[name, value]
        case int() if abs(value - time.time() * 1000) < HOUR_MS and "offset" not in name:
            return "<now>"
        case int():
            return value
        case str():
            return _string(name, value, names)
        case uuid.UUID():
            return _uuid(value.bytes, names)
        case bytes() | memoryview() | bytearray() if name == "records":
            return [_batch(entry, names) for entry in batches.read(bytes(value)) or []]
        case bytes() | memoryview() | bytearray():
            raw = bytes(value)
            if name.endswith("_id") and len(raw) == 16:
                return _uuid(raw, names)
            return raw.decode("utf-8", "backslashreplace")
        case list() | tuple():
            made = [_value(name, item, names, version) for item in value]
            return sorted(made, key=_order) if made and isinstance(made[0], dict) else made
        case _:
            return _struct(value, names, version)


def _order(value: Any) -> str:
    keys = ("name", "topic", "group_id", "resource_name", "key", "partition_index", "index", "partition", "api_key")
    lead = [f"{value[k]:06d}" if isinstance(value[k], int) else str(value[k]) for k in keys if k in value]
    return json.dumps([*lead, value], sort_keys=True)


def _batch(entry: dict[str, Any], names: Names) -> dict[str, Any]:
    now = time.time() * 1000
    out: dict[str, Any] = {}
    for name, value in entry.items():
        if (name, value) in names.numbers if isinstance(value, int) else False:
            out[name] = names.numbers[name, value]
        else:
            out[name] = "<now>" if name.endswith("timestamp") and abs(value - now) < HOUR_MS else value
    return out


def _uuid(raw: bytes, names: Names) -> str:
    if not any(raw):
        return "<zero>"
    return names.uuids.get(raw, "<uuid>")


def _string(name: str, value: str, names: Names) -> str:
    if name in TEXTS:
        return "~" + _UUID.sub("<uuid>", value.replace(names.token, ""))
    if name == "host" and value == names.host:
        return "<host>"
    if name == "cluster_id" and value == names.cluster_id:
        return "<cluster>"
    if name == "resource_name" and value == str(names.node_id):
        return "<node>"
    if name == "log_dir":
        return "<log dir>"
    if value in names.strings:
        return names.strings[value]
    return _UUID.sub("<uuid>", value.replace(names.token, ""))
