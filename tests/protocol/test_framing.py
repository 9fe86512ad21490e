"""Frames: headers against kio, whole and byte by byte, with trailing bytes, with lengths that lie."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.request_header.v2.header import RequestHeader as KioHeader
from kio.serial import entity_reader

from ottla.protocol.apis import APIS
from ottla.protocol.errors import ErrorCode, MalformedFrameError
from ottla.protocol.framing import (
    FrameSplitter,
    FrameTooLargeError,
    RequestHeader,
    UnsupportedApiError,
    decode_request,
    decode_request_header,
    decode_response,
    encode_request,
    encode_response,
)
from ottla.protocol.private_requests import PRIVATE_FROM
from tests.harness.protocol.kio_oracle import Case, cases, kio_bytes

REQUESTS = [case for case in cases() if case.name.endswith("Request")]
RESPONSES = [case for case in cases() if case.name.endswith("Response")]


def header_of(case: Case, client_id: str | None = "a client") -> RequestHeader:
    return RequestHeader(case.ours.API_KEY, case.version, 77, client_id)


@pytest.mark.parametrize("case", REQUESTS, ids=lambda case: case.id)
def test_request_frames_carry_kios_header(case: Case) -> None:
    message = case.ours()
    frame = encode_request(header_of(case), message)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    read, size = entity_reader(case.kio.__header_schema__)(bytes(frame[4:]), 0)
    assert (read.request_api_key, read.request_api_version) == (case.ours.API_KEY, case.version)
    assert (read.correlation_id, read.client_id) == (77, "a client")
    assert decode_request_header(memoryview(frame)[4:]) == (header_of(case), size)
    assert decode_request(memoryview(frame + b"behind")[4:]) == (header_of(case), message)


@pytest.mark.parametrize("case", RESPONSES, ids=lambda case: case.id)
def test_response_frames_carry_kios_header(case: Case) -> None:
    message = case.ours()
    frame = encode_response(header_of(case), message)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    read, size = entity_reader(case.kio.__header_schema__)(bytes(frame[4:]), 0)
    assert read.correlation_id == 77
    assert case.ours.decode(memoryview(frame), 4 + size, case.version) == (message, len(frame))
    assert decode_response(case.ours.API_KEY, case.version, memoryview(frame)[4:]) == (77, message)


def test_the_api_table_is_that_of_the_classes() -> None:
    spoken = {case.ours.API_KEY for case in REQUESTS}
    assert spoken == {key for key, api in APIS.items() if api.has_messages(api.max_version) and key < PRIVATE_FROM}
    for api in map(APIS.__getitem__, spoken):
        for cls in (api.request, api.response):
            assert (api.key, api.min_version, api.max_version) == (cls.API_KEY, cls.MIN_VERSION, cls.MAX_VERSION)
        assert api.flexible_since == api.request.FLEXIBLE_SINCE
        assert api.request.__name__ == api.name + "Request"


def test_a_stream_fed_byte_by_byte_gives_the_same_frames_as_fed_whole() -> None:
    frames = [encode_request(header_of(case, None), case.ours()) for case in REQUESTS]
    stream = b"".join(frames)
    whole, slow = FrameSplitter(), FrameSplitter()
    expected = [bytes(frame) for frame in whole.feed(stream)]
    assert expected == [bytes(frame[4:]) for frame in frames]
    assert [bytes(frame) for at in range(len(stream)) for frame in slow.feed(stream[at : at + 1])] == expected
    assert slow._buffer == whole._buffer == b""
    for frame, case in zip(expected, REQUESTS, strict=True):
        assert decode_request(frame)[1] == case.ours()


def test_a_splitter_keeps_the_rest_for_later() -> None:
    splitter = FrameSplitter()
    assert [bytes(f) for f in splitter.feed(b"\0\0\0\x02ab\0\0\0\x01c\0\0")] == [b"ab", b"c"]
    assert splitter._buffer == b"\0\0"
    assert [bytes(f) for f in splitter.feed(b"\0\0")] == [b""]
    assert [bytes(f) for f in splitter.feed(b"\0\0\0\x03xy")] == []
    assert [bytes(f) for f in splitter.feed(b"z")] == [b"xyz"]


@pytest.mark.parametrize("length", [-1, 101, 2**31 - 1])
def test_a_splitter_refuses_a_length_before_the_bytes_are_there(length: int) -> None:
    splitter = FrameSplitter(frame_bytes_max=100)
    good = b"\0\0\0\x01a"
    frames = splitter.feed(good + length.to_bytes(4, "big", signed=True))
    assert bytes(next(frames)) == b"a"
    with pytest.raises(FrameTooLargeError):
        next(frames)


def test_an_unknown_api_is_told_from_a_broken_header() -> None:
    with pytest.raises(UnsupportedApiError) as caught:
        decode_request_header(b"\x27\x0f\0\x03\0\0\0\x09\xff\xff")
    assert (caught.value.api_key, caught.value.api_version, caught.value.correlation_id) == (9999, 3, 9)
    broken = [b"", b"\0", b"\0\x12\0\0\0\0\0\x01", b"\0\x12\0\0\0\0\0\x01\0\x05abc"]
    for frame in [*broken, b"\0\x12\0\x03\0\0\0\x01\xff\xff\xff\xff\xff\xff\xff\xff"]:
        with pytest.raises(MalformedFrameError) as caught_frame:
            decode_request_header(frame)
        assert not isinstance(caught_frame.value, UnsupportedApiError)


def test_a_version_the_codec_lacks_is_malformed_but_its_header_can_be_read() -> None:
    frame = b"\0\x12\x7f\xff\0\0\0\x05\0\x02me\0rest"
    header, pos = decode_request_header(frame)
    assert (header.api_version, header.client_id, frame[pos:]) == (32767, "me", b"rest")
    with pytest.raises(MalformedFrameError):
        decode_request(frame)


def test_response_headers_cut_short_are_malformed() -> None:
    for frame in (b"", b"\0\0\0", b"\0\0\0\x01"):
        with pytest.raises(MalformedFrameError):
            decode_response(0, 9, frame)


def test_kios_own_header_bytes_are_read() -> None:
    header: Any = {"request_api_key": 1, "request_api_version": 17, "correlation_id": -5, "client_id": "ü"}
    theirs = kio_bytes(KioHeader(**header))
    assert decode_request_header(theirs) == (RequestHeader(1, 17, -5, "ü"), len(theirs))


def test_error_codes_are_kios() -> None:
    from kio.schema.errors import ErrorCode as Theirs

    ours = {(e.name.lower(), int(e), e.retriable) for e in ErrorCode}
    theirs = {(e.name, int(e), e.retriable) for e in Theirs}
    assert ours == theirs
    assert ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.message == "This server does not host this topic-partition."


def test_a_client_id_is_a_label_and_may_be_bad_text() -> None:
    """Kafka replaces what is not UTF-8 in it and serves the request."""
    header, _ = decode_request_header(b"\0\x12\0\0\0\0\0\x01\0\x01\xff")
    assert header.client_id == "\ufffd"
