"""The message definitions that the codec is generated from, as plain values.

Knows how to read the definitions of Apache Kafka 4.3's messages out of the installed package `kio` (one frozen
dataclass per message and version) and how to fold all versions of a message into one `Message`. Knows nothing of the
code that is generated. The records of Kafka's internal topics, which kio lacks, come from `internal_records`, the
messages of Ottla's own requests from `private_messages`.

Invariants: the versions in which a field exists form one range; a field has one type, one default and one tag.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import re
import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.internal_records import INTERNAL_RECORDS
from tools.private_messages import PRIVATE_MESSAGES

NEVER = 32767
"""The first flexible version of a message that has none."""

_KINDS = {
    "error_code": "int16",
    "timedelta_i32": "int32",
    "timedelta_i64": "int64",
    "datetime_i64": "int64",
}

_NULL_ARRAYS = {
    ("ConsumerGroupHeartbeatRequest", "topic_partitions"),
    ("ListPartitionReassignmentsRequest", "topics"),
    ("StreamsGroupHeartbeatRequest", "active_tasks"),
    ("StreamsGroupHeartbeatRequest", "standby_tasks"),
    ("StreamsGroupHeartbeatRequest", "warmup_tasks"),
    ("StreamsGroupHeartbeatRequest", "client_tags"),
    ("StreamsGroupHeartbeatRequest", "task_offsets"),
    ("StreamsGroupHeartbeatRequest", "task_end_offsets"),
    ("StreamsGroupHeartbeatResponse", "active_tasks"),
    ("StreamsGroupHeartbeatResponse", "standby_tasks"),
    ("StreamsGroupHeartbeatResponse", "warmup_tasks"),
    ("StreamsGroupHeartbeatResponse", "partitions_by_user_endpoint"),
    ("Topology", "subtopologies"),
}
"""Nullable arrays whose default in Kafka is null; kio lost that."""


@dataclass(slots=True)
class Field:
    """One field of a struct in every version. `nullable` and `versions` are inclusive ranges."""

    name: str
    kio_name: str
    kind: str  # bool int8 int16 uint16 int32 int64 float64 string bytes records uuid struct
    array: bool
    struct: str | None
    versions: tuple[int, int]
    nullable: tuple[int, int] | None
    tag: int | None
    default: Any  # an int, float, bool, str, bytes, None (null), [] (empty array) or "struct"


@dataclass(slots=True)
class Struct:
    name: str
    fields: list[Field]


@dataclass(slots=True)
class Message:
    """A request, a response or a stored record: a top struct and the structs inside it, innermost first."""

    module: str
    name: str
    key: int | None  # the API's, or of a record of an internal topic the number of its type
    versions: tuple[int, int]
    flexible_since: int
    structs: list[Struct]
    renamed: dict[str, str] = dataclasses.field(default_factory=dict[str, str])
    topic: str | None = None  # the internal topic of a record

    @property
    def top(self) -> Struct:
        return self.structs[-1]


def _unwrap(annotation: Any) -> tuple[Any, bool, bool]:
    """(inner type, is an array, the field itself may be null) of a kio annotation."""
    null = False
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        args = [a for a in typing.get_args(annotation) if a is not types.NoneType]
        null = len(args) < len(typing.get_args(annotation))
        (annotation,) = args
    if typing.get_origin(annotation) is tuple:
        inner, _, _ = _unwrap(typing.get_args(annotation)[0])
        return inner, True, null
    return annotation, False, null


def _milliseconds(value: datetime.timedelta) -> int:
    return round(value.total_seconds() * 1000)


def _default(field: Any, kind: str, array: bool, nullable: bool) -> Any:
    """Kafka's default: the declared one, else the zero of the type (null for records)."""
    value = field.default
    if value is dataclasses.MISSING or (value is None and kind == "uuid" and not array):
        zero = {"bool": False, "float64": 0.0, "string": "", "bytes": b"", "records": None, "uuid": bytes(16)}
        return [] if array else "struct" if kind == "struct" else zero.get(kind, 0)
    if value is None:
        return None if nullable else -1  # an absent point in time
    if array:
        return []
    if dataclasses.is_dataclass(value):
        return "struct"
    if isinstance(value, datetime.timedelta):
        return _milliseconds(value)
    return value if isinstance(value, bool | float | str | bytes) else int(value)


def _read_field(struct: str, version: int, field: Any, annotation: Any) -> Field:
    inner, array, null = _unwrap(annotation)
    kafka_type = field.metadata.get("kafka_type")
    kind = "struct" if kafka_type is None else _KINDS.get(kafka_type, kafka_type)
    nullable = null and (array or kind in ("string", "bytes", "records", "struct"))
    name = field.name
    if kafka_type in ("timedelta_i32", "timedelta_i64", "datetime_i64"):
        name += "_ms"  # kio drops Kafka's suffix
    null_array = nullable and array and (struct, field.name) in _NULL_ARRAYS
    return Field(
        name=name,
        kio_name=field.name,
        kind=kind,
        array=array,
        struct=inner.__name__ if kafka_type is None else None,
        versions=(version, version),
        nullable=(version, version) if nullable else None,
        tag=field.metadata.get("tag"),
        default=None if null_array else _default(field, kind, array, nullable),
    )


def _merge_field(known: Field, older: Field) -> None:
    """Widen `known` by the next older version of the same field."""
    where = known.name
    assert (known.kind, known.array, known.struct, known.tag) == (older.kind, older.array, older.struct, older.tag), (
        where
    )
    assert older.versions[0] == known.versions[0] - 1, f"{where}: versions with a hole"
    if known.default != older.default:
        raise AssertionError(f"{where}: default {known.default!r}, in version {older.versions[0]} {older.default!r}")
    known.versions = (older.versions[0], known.versions[1])
    if older.nullable is not None:
        known.nullable = older.nullable if known.nullable is None else (older.nullable[0], known.nullable[1])


def _merge_struct(known: Struct, older: Struct) -> None:
    """Fold an older version in; a field only the older one has goes behind its neighbour there."""
    by_name = {field.name: field for field in known.fields}
    previous = -1
    for field in older.fields:
        if field.name in by_name:
            _merge_field(by_name[field.name], field)
            previous = known.fields.index(by_name[field.name])
        else:
            previous += 1
            known.fields.insert(previous, field)


def _structs_of(module: Any, version: int) -> list[Struct]:
    found: list[Struct] = []
    for name, cls in vars(module).items():
        if isinstance(cls, type) and dataclasses.is_dataclass(cls) and cls.__module__ == module.__name__:
            hints = typing.get_type_hints(cls)
            found.append(Struct(name, [_read_field(name, version, f, hints[f.name]) for f in dataclasses.fields(cls)]))
    return found


def _read_message(module: str, kind: str, versions: list[int]) -> Message:
    message: Message | None = None
    for version in sorted(versions, reverse=True):
        loaded = importlib.import_module(f"kio.schema.{module}.v{version}.{kind}")
        structs = _structs_of(loaded, version)
        top = getattr(loaded, structs[-1].name)
        if message is None:
            key = int(top.__api_key__) if hasattr(top, "__api_key__") else None
            message = Message(module, top.__name__, key, (version, version), NEVER, structs)
        else:
            known = {struct.name: struct for struct in message.structs}
            for struct in structs:
                if struct.name in known:
                    _merge_struct(known[struct.name], struct)
                else:
                    message.structs.insert(0, struct)
            message.versions = (version, message.versions[1])
        if top.__flexible__:
            message.flexible_since = version
    assert message is not None
    message.structs = _innermost_first(message.structs)
    return message


def _innermost_first(structs: list[Struct]) -> list[Struct]:
    by_name = {struct.name: struct for struct in structs}
    ordered: dict[str, Struct] = {}

    def place(struct: Struct) -> None:
        for field in struct.fields:
            if field.struct is not None:
                place(by_name[field.struct])
        ordered.setdefault(struct.name, struct)

    place(structs[-1])
    return list(ordered.values())


def read_kio() -> dict[str, list[Message]]:
    """Every message kio describes except the two headers: {module: [request, response] or [stored record]}."""
    import kio.schema

    root = Path(next(iter(kio.schema.__path__)))
    modules: dict[str, list[Message]] = {}
    for directory in sorted(root.iterdir()):
        if directory.name.endswith("_header") or not any(directory.glob("v*")):
            continue
        versions = [int(path.name[1:]) for path in directory.glob("v*")]
        messages = [
            _read_message(directory.name, kind, sorted(versions))
            for kind in ("request", "response", "data")
            if any(directory.glob(f"v*/{kind}.py"))
        ]
        modules[directory.name] = messages
        if len(messages) == 2:
            _rename_clashes(*messages)
    return modules


def _rename_clashes(request: Message, response: Message) -> None:
    """A request and a response share a module: a struct name both use gets a prefix in both."""
    clash = {s.name for s in request.structs} & {s.name for s in response.structs}
    for message, prefix in ((request, "Request"), (response, "Response")):
        message.renamed = {name: prefix + name for name in sorted(clash)}
        for struct in message.structs:
            struct.name = message.renamed.get(struct.name, struct.name)
            for field in struct.fields:
                if field.struct is not None:
                    field.struct = message.renamed.get(field.struct, field.struct)


def read_internal_records() -> dict[str, list[Message]]:
    """The records of the internal topics: {module: [key, value]}."""
    modules: dict[str, list[Message]] = {}
    topic = ""
    message: Message | None = None
    for line in INTERNAL_RECORDS.strip().splitlines():
        words = line.split()
        if line.startswith("topic "):
            topic = words[1]
        elif line[0] != " ":
            message = _record(words, topic)
            modules.setdefault(message.module, []).append(message)
        else:
            assert message is not None
            _add_line(message, words)
    for messages in modules.values():
        for message in messages:
            message.structs = _innermost_first([*message.structs[1:], message.structs[0]])
    return modules


def read_private() -> dict[str, list[Message]]:
    """The messages of Ottla's own requests: {module: [request, response]}."""
    modules: dict[str, list[Message]] = {}
    api: list[str] = []
    message: Message | None = None
    for line in PRIVATE_MESSAGES.strip().splitlines():
        words = line.split()
        if words[0] == "api":
            api = words[1:]
        elif line[0] != " ":
            message = _private(api, words[0].capitalize())
            modules.setdefault(message.module, []).append(message)
        else:
            assert message is not None
            _add_line(message, words)
    for request, response in modules.values():
        for message in (request, response):
            message.structs = _innermost_first([*message.structs[1:], message.structs[0]])
        _rename_clashes(request, response)
    return modules


def _add_line(message: Message, words: list[str]) -> None:
    """A line of a table behind a message's own: a struct, or a field of the struct before it."""
    if words[0] == "struct":
        message.structs.append(Struct(words[1], []))
    else:
        message.structs[-1].fields.append(_record_field(words, message.versions))


def _snake(name: str) -> str:
    return re.sub("(?<!^)([A-Z])", r"_\1", name).lower()


def _private(words: list[str], kind: str) -> Message:
    name = words[0]
    options = dict(word.split("=") for word in words[1:])
    low, high = (int(part) for part in options["versions"].split("-"))
    structs = [Struct(name + kind, [])]
    return Message(_snake(name), name + kind, int(options["key"]), (low, high), int(options["flexible"]), structs)


def _record(words: list[str], topic: str) -> Message:
    name = words[0]
    options = dict(word.split("=") for word in words[1:])
    low, high = (int(part) for part in options["versions"].split("-"))
    flexible = NEVER if options["flexible"] == "never" else int(options["flexible"])
    module = _snake(re.sub("(Key|Value)$", "", name)) + "_record"
    return Message(module, name, int(options["type"]), (low, high), flexible, [Struct(name, [])], topic=topic)


def _record_field(words: list[str], versions: tuple[int, int]) -> Field:
    name, kind, *rest = words
    options = dict(word.split("=") for word in rest if "=" in word)
    where = next((word for word in rest if "=" not in word), None)
    if where is not None:
        low = int(where.rstrip("+"))
        versions = (low, versions[1] if where.endswith("+") else low)
    nullable, array = kind.endswith("?"), kind.startswith("[]")
    kind = kind.strip("[]?")
    struct = kind if kind[0].isupper() else None
    zero: dict[str, Any] = {"bool": False, "float64": 0.0, "string": "", "bytes": b"", "uuid": bytes(16)}
    default: Any = [] if array else "struct" if struct else zero.get(kind, 0)
    if "default" in options:
        text = options["default"]
        default = None if text == "null" else text if text == "struct" else int(text)
    tag = int(options["tag"]) if "tag" in options else None
    kind = "struct" if struct else kind
    return Field(name, name, kind, array, struct, versions, versions if nullable else None, tag, default)
