"""The bytes of markers and headers: golden ones of softwaremill/kmq 0.3.2, round trips, and whatever else may come."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.kmq import headers, markers
from ottla.kmq.events import Reason
from ottla.kmq.markers import END, InvalidMarkerError, Kind, Start, decode, decode_key, pack_key, start

GOLDEN_KEYS = {
    (0, 0): "000000000000000000000000",
    (1, 1000): "0000000100000000000003e8",
    (7, 4_294_967_296): "000000070000000100000000",
    (2_147_483_647, 9_223_372_036_854_775_807): "7fffffff7fffffffffffffff",
}
"""What `new MarkerKey(partition, offset).serialize()` gives."""

GOLDEN_STARTS = {
    0: "010000000000000000",
    90_000: "010000000000015f90",
    4_000: "010000000000000fa0",
    9_223_372_036_854_775_807: "017fffffffffffffff",
}
"""What `new StartMarker(redeliverAfter).serialize()` gives."""


@pytest.mark.parametrize(("key", "golden"), GOLDEN_KEYS.items())
def test_keys_are_as_the_original_writes_them(key: tuple[int, int], golden: str) -> None:
    assert pack_key(*key).hex() == golden
    assert decode_key(bytes.fromhex(golden)) == key


@pytest.mark.parametrize(("duration_ms", "golden"), GOLDEN_STARTS.items())
def test_start_markers_are_as_the_original_writes_them(duration_ms: int, golden: str) -> None:
    assert start(duration_ms).hex() == golden
    assert decode(bytes.fromhex(golden)) == Start(min(duration_ms, markers.DURATION_MS_MAX))


def test_the_end_marker_is_as_the_original_writes_it() -> None:
    assert END.hex() == "00"
    assert decode(END) is None


def test_whatever_does_not_begin_with_one_is_an_end_as_for_the_original() -> None:
    assert decode(b"\x02") is None
    assert decode(b"\xff and more") is None


@pytest.mark.parametrize("value", [None, b"", b"\x01", b"\x01" + bytes(7)])
def test_what_the_original_cannot_read_is_malformed(value: bytes | None) -> None:
    with pytest.raises(InvalidMarkerError):
        decode(value)


@pytest.mark.parametrize("key", [None, b"", bytes(11), bytes(13)])
def test_a_key_of_another_length_is_malformed(key: bytes | None) -> None:
    with pytest.raises(InvalidMarkerError):
        decode_key(key)


def read_as_the_original_does(value: bytes) -> int | None:
    """MarkerValue.java's deserializer: the time-out of a start marker, None for an end marker."""
    return int.from_bytes(value[1:9], "big", signed=True) if value[0] == 1 else None


@given(st.integers(0, markers.DURATION_MS_MAX), st.sampled_from(Kind), st.text(max_size=600))
def test_starts_come_back_and_the_original_reads_their_time_out(duration_ms: int, kind: Kind, reason: str) -> None:
    value = start(duration_ms, kind, reason)
    said = decode(value)
    assert said is not None
    assert (said.duration_ms, said.kind) == (duration_ms, kind)
    assert read_as_the_original_does(value) == duration_ms
    assert len(value) == 9 if kind is Kind.BEGIN else 10 <= len(value) <= 10 + markers.REASON_BYTES_MAX
    if kind is not Kind.BEGIN and len(reason.encode(errors="replace")) <= markers.REASON_BYTES_MAX:
        assert said.reason == reason.encode(errors="replace").decode()


@given(st.binary(min_size=1, max_size=40))
def test_any_bytes_are_a_marker_or_malformed(value: bytes) -> None:
    try:
        said = decode(value)
    except InvalidMarkerError:
        assert len(value) < 9
    else:
        assert (said is None) == (value[0] != 1)


def test_a_negative_time_out_is_refused() -> None:
    with pytest.raises(ValueError, match="not negative: -1"):
        start(-1)


@pytest.mark.parametrize(
    ("count", "golden"), [(0, "00"), (1, "01"), (127, "7f"), (128, "00000080"), (300, "0000012c"), (-1, "ff")]
)
def test_counts_are_as_the_original_writes_them(count: int, golden: str) -> None:
    assert headers.encode_count(count).hex() == golden
    assert headers.count_in([("other", b"\x09"), ("n", bytes.fromhex(golden))], "n") == count


@pytest.mark.parametrize("value", [None, b"", b"12", b"123456789"])
def test_a_header_that_is_no_count_counts_nothing(value: bytes | None) -> None:
    assert headers.count_in([("n", value)], "n") == 0


def test_the_count_takes_its_old_place_among_the_headers() -> None:
    had: headers.Headers = [("a", b"1"), ("n", b"\x01"), ("a", None), ("n", b"\x05")]
    assert headers.with_count(had, "n", 2) == [("a", b"1"), ("n", b"\x02"), ("a", None)]
    assert headers.with_count([("a", b"1")], "n", 200) == [("a", b"1"), ("n", b"\x00\x00\x00\xc8")]


def test_provenance_comes_back_and_the_messages_own_headers_too() -> None:
    said = headers.Provenance("jobs", 3, 17, "kmq-jobs", 4, Reason.FAILED, "boom", 1_700_000_000_000)
    own: headers.Headers = [("a", b"1"), ("n", b"\x03")]
    letter = [*own, *said.headers()]
    assert headers.provenance(letter) == said
    assert headers.of_message(letter) == own
    assert headers.of_message(letter, "n") == [("a", b"1")]
    assert headers.provenance([("a", None)]) == headers.Provenance(None, None, None, None, None, "", "", None)
