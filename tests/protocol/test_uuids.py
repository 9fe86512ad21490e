"""Texts of ids, as Kafka's Uuid writes and reads them."""

import uuid

import pytest

from ottla.protocol.uuids import parse_uuid, uuid_text


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (bytes(16), "AAAAAAAAAAAAAAAAAAAAAA"),
        (bytes(15) + b"\x01", "AAAAAAAAAAAAAAAAAAAAAQ"),
        (b"\xff" * 16, "_____________________w"),
        (uuid.UUID("fbef0000-0000-0000-0000-000000000000").bytes, "--8AAAAAAAAAAAAAAAAAAA"),
    ],
)
def test_an_id_and_its_text(raw: bytes, text: str) -> None:
    assert uuid_text(raw) == text
    assert parse_uuid(text) == raw


@pytest.mark.parametrize("text", ["", "AAAA", "AAAAAAAAAAAAAAAAAAAAAAAA"])
def test_a_text_of_another_length_is_no_id(text: str) -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        parse_uuid(text)
