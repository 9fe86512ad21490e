"""Decodes messages in Protobuf with Google's library as values of JSON, and encodes them.

A schema is the FileDescriptorProto that registries give with `format=serialized`, or else source text, which protoc
compiles. Fields have the names of the schema, and fields without a value their defaults.

Only the worker process imports this module.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from google.protobuf import json_format
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

OWN_NAME: Final = "ottla-schema.proto"
_GOOGLES: Final = tuple(
    f"google/protobuf/{name}.proto"
    for name in (
        "any",
        "api",
        "descriptor",
        "duration",
        "empty",
        "field_mask",
        "source_context",
        "struct",
        "timestamp",
        "type",
        "wrappers",
    )
)


class Protobuf:
    """A schema, with those that it imports. Raises ValueError or TypeError if it cannot be used."""

    def __init__(self, text: str, references: Iterable[tuple[str, str]]) -> None:
        self._pool = DescriptorPool()
        self._known: set[str] = set()
        files = [*references, (OWN_NAME, text)]
        descriptors = [_descriptor(each) for _, each in files]
        if None in descriptors:
            descriptors = _compiled(files)
        for (name, _), each in zip(files, descriptors, strict=True):
            assert each is not None
            self._file = each
            self._add(name, each)

    def name_of(self, indexes: Sequence[int]) -> str:
        """The full name of the type at a position. Raises ValueError."""
        names = [self._file.package] if self._file.package else []
        types: Any = self._file.message_type
        for index in indexes:
            if not 0 <= index < len(types):
                raise ValueError(f"the schema has no type at {list(indexes)}")
            names.append(types[index].name)
            types = types[index].nested_type
        return ".".join(names)

    def decoded(self, indexes: Sequence[int], data: bytes) -> Any:
        """The value of JSON. Raises ValueError, or an error of the library."""
        kind = GetMessageClass(self._pool.FindMessageTypeByName(self.name_of(indexes)))
        return json_format.MessageToDict(
            kind.FromString(data),
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=True,
            descriptor_pool=self._pool,
        )

    def indexes_of(self, name: str) -> list[int]:
        """The position of the type with this name, with or without its package. Raises ValueError."""
        found = {self.name_of(each): each for each in _positions(self._file.message_type)}
        for each in (name, f"{self._file.package}.{name}"):
            if each in found:
                return found[each]
        raise ValueError(f"the schema has no type {name}, but {', '.join(found)}")

    def encoded(self, indexes: Sequence[int], value: Any) -> bytes:
        """The message of a value of JSON. Raises ValueError with part of a sentence that names the field."""
        if not isinstance(value, dict):
            raise ValueError("it must be an object")
        message: Any = GetMessageClass(self._pool.FindMessageTypeByName(self.name_of(indexes)))()
        try:
            json_format.ParseDict(value, message, descriptor_pool=self._pool)
        except json_format.ParseError as wrong:
            raise ValueError(_misfit(str(wrong))) from None
        missing = message.FindInitializationErrors()
        if missing:
            raise ValueError(f"the field {missing[0]} is missing")
        return message.SerializeToString(deterministic=True)

    def _add(self, name: str, file: FileDescriptorProto) -> None:
        """Add a file under the name by which others import it."""
        if name in self._known:
            return
        self._known.add(name)
        for each in file.dependency:
            if each not in self._known:
                self._add(each, _googles(each))
        file.name = name
        self._pool.Add(file)


def _positions(types: Iterable[Any]) -> Iterable[list[int]]:
    """The positions of types and of those within them."""
    for at, each in enumerate(types):
        yield [at]
        yield from ([at, *rest] for rest in _positions(each.nested_type))


def _misfit(text: str) -> str:
    """An error of the library as part of a sentence that names the field."""
    names: list[str] = []
    while (within := re.fullmatch(r"Failed to parse (\S+) field: (.*)", text, re.DOTALL)) is not None:
        names.append(within[1])
        text = within[2]
    unknown = re.match(r'Message type "(.+)" has no field named "(.+)" at ', text)
    if unknown is not None:
        return f"the field {'.'.join([*names, unknown[2]])} is unknown in {unknown[1]}"
    text = text.rstrip(".")
    return f"the field {'.'.join(names)}: {text}" if names else text


def _descriptor(text: str) -> FileDescriptorProto | None:
    """The descriptor of base64; None for source text."""
    try:
        return FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (ValueError, DecodeError):
        return None


def _compiled(files: Sequence[tuple[str, str]]) -> list[FileDescriptorProto | None]:
    """The descriptors of source texts by protoc. Raises ValueError."""
    from grpc_tools import protoc

    with TemporaryDirectory(prefix="ottla-schema-") as directory:
        result = Path(directory, "result")
        for name, text in files:
            if not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)*", name, re.ASCII):  # a path below, and no option of protoc
                raise ValueError("a file that it imports has an odd name")
            path = Path(directory, "sources", name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        included = [f"-I{directory}/sources", f"-I{Path(protoc.__file__).parent / '_proto'}"]
        names = [name for name, _ in files]
        if protoc.main(["protoc", *included, f"--descriptor_set_out={result}", *names]) != 0:
            raise ValueError("its source text cannot be compiled, perhaps because it imports what the registry lacks")
        found = {each.name: each for each in FileDescriptorSet.FromString(result.read_bytes()).file}
    return [found[name] for name in names]


def _googles(name: str) -> FileDescriptorProto:
    """A file that is not a reference: one of Google's. Any other is taken to be empty, because files are often imported
    for their options alone; a type that is used from it is missing then, which the pool reports."""
    found = FileDescriptorProto()
    if name in _GOOGLES:
        import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2").DESCRIPTOR.CopyToProto(found)
    return found
