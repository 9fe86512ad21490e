"""The id of the schema in front of a value, or in a header."""

from __future__ import annotations

import uuid

import pytest

from ottla.schemas.framing import Framed, MalformedError, framed

GUID = uuid.UUID(int=7)


def test_a_number_in_front() -> None:
    assert framed(b"\0\0\0\1\2rest") == Framed(258, None, b"rest")
    assert framed(b"\0\0\0\1\2") == Framed(258, None, b"")


@pytest.mark.parametrize(
    "data", [None, b"", b"\0\0\0\1", b"\1\0\0\0\1x", b'{"a": 1}', b"\0\xff\xff\xff\xffx", bytes(9)]
)
def test_other_bytes_name_no_schema(data: bytes | None) -> None:
    """Nine zero bytes could be a number of eight bytes or more; registries count from 1."""
    assert framed(data) is None
    assert framed(data, [("__value_schema_id", b"\x05?")]) is None


def test_a_guid_in_a_header_of_the_key_or_the_value() -> None:
    headers = [("__key_schema_id", b"\0\0\0\0\3"), (b"__value_schema_id", b"\1" + GUID.bytes + b"\2\0")]
    assert framed(b"data", headers) == Framed(str(GUID), b"\2\0", b"data")
    assert framed(b"data", headers, is_key=True) == Framed(3, b"", b"data")
    assert framed(b"\1" + GUID.bytes + b"data") is None, "only a header holds a GUID"


@pytest.mark.parametrize(("data", "indexes"), [(b"\0x", (0,)), (b"\2\6x", (3,)), (b"\4\2\0x", (1, 0))])
def test_the_type_of_a_message(data: bytes, indexes: tuple[int, ...]) -> None:
    assert Framed(1, None, data).message() == (indexes, b"x")
    assert Framed(1, data[:-1], b"x").message() == (indexes, b"x")


@pytest.mark.parametrize("data", [b"", b"\2", b"\xff\xff\xff\xff\xff\xff", b"\1", b"\x80\x01"])
def test_a_type_that_cannot_be_read(data: bytes) -> None:
    with pytest.raises(MalformedError):
        Framed(1, None, data).message()
