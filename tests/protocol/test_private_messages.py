"""The messages of Ottla's own requests: their bytes, which no other project describes, and what is no message."""

from __future__ import annotations

import importlib
import random
from contextlib import suppress
from typing import Any

import pytest

from ottla.protocol.apis import APIS
from ottla.protocol.errors import MalformedFrameError
from ottla.protocol.framing import RequestHeader, decode_request, decode_response, encode_request, encode_response
from ottla.protocol.messages.describe_share_partitions import (
    DescribeSharePartitionsRequest,
    DescribeSharePartitionsResponse,
    RequestPartition,
    RequestTopic,
)
from ottla.protocol.private_requests import PRIVATE_FROM, parsed, shown
from tests.harness.protocol.private_messages import filled, private_messages

MESSAGES = [(message, version) for message in private_messages() for version in range(message.versions[1] + 1)]
IDS = [f"{message.name}-v{version}" for message, version in MESSAGES]


def test_every_own_request_has_its_two_messages() -> None:
    own = {key for key in APIS if key >= PRIVATE_FROM}
    keys = [message.key for message, _ in MESSAGES]
    assert set(keys) == own
    for key in own:
        api = APIS[key]
        assert (api.key, api.min_version, api.max_version) == (key, api.request.MIN_VERSION, api.request.MAX_VERSION)
        assert (api.request.__name__, api.response.__name__) == (api.name + "Request", api.name + "Response")


def test_the_bytes_of_a_request_never_change() -> None:
    asked = DescribeSharePartitionsRequest("g", [RequestTopic("t", [RequestPartition(1, 7)])], 500)
    frame = encode_request(RequestHeader(asked.API_KEY, 0, 1, "c"), asked)
    header, body = "2a94 0000 00000001 0001 63 00", "02 67 02 02 74 02 00000001 0000000000000007 00 00 000001f4 00"
    assert frame[4:].hex() == (header + body).replace(" ", "")
    answer = DescribeSharePartitionsResponse(topics=[])
    written = encode_response(RequestHeader(asked.API_KEY, 0, 1), answer)
    rest = "00000000 0000 00 00 ffffffffffffffff 00 00000000 00000000 00000000 01 00"
    assert written[4:].hex() == ("00000001 00" + rest).replace(" ", "")


@pytest.mark.parametrize(("message", "version"), MESSAGES, ids=IDS)
def test_what_is_written_is_read(message: Any, version: int) -> None:
    value = filled(message, version)
    out = bytearray(b"before")
    value.encode(out, version)
    decoded, end = type(value).decode(memoryview(bytes(out) + b"behind"), 6, version)
    assert (decoded, end) == (value, len(out))
    header = RequestHeader(message.key, version, 77, "a client")
    if message.name.endswith("Request"):
        assert decode_request(memoryview(encode_request(header, value))[4:]) == (header, value)
    else:
        assert decode_response(message.key, version, memoryview(encode_response(header, value))[4:]) == (77, value)


@pytest.mark.parametrize(("message", "version"), MESSAGES, ids=IDS)
def test_damaged_messages_parse_or_are_malformed(message: Any, version: int) -> None:
    dice = random.Random(f"{message.name} {version}")
    good = bytearray()
    filled(message, version).encode(good, version)
    decode = getattr(importlib.import_module(f"ottla.protocol.messages.{message.module}"), message.name).decode
    for length in range(len(good)):
        with pytest.raises(MalformedFrameError):
            decode(bytes(good[:length]), 0, version)
    for _ in range(300):
        damaged = bytearray(good)
        for _ in range(dice.randint(1, 3)):
            damaged[dice.randrange(len(damaged))] = dice.choice((0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)))
        with suppress(MalformedFrameError):
            _, end = decode(bytes(damaged), 0, version)
            assert 0 <= end <= len(damaged)


def test_the_list_of_served_requests_is_read_as_it_is_written() -> None:
    ranges = {10_901: (0, 2), 10_900: (0, 0)}
    text = ",".join(shown(ranges))
    assert text == "10900:0-0,10901:0-2"
    assert parsed(text) == ranges
    assert parsed("") == parsed("x, 10900:0, 10900:-1-2,,10900:0-0-0") == {}
    assert parsed(" 10950:1-3 ,what a later version adds") == {10_950: (1, 3)}
