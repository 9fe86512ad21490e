"""Decodes the keys and values of records for one request of a browser, by the schemas of a registry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from ottla.console.browsing.found import Found
from ottla.schemas.decoder import Decoded, Decoder
from ottla.schemas.framing import framed
from ottla.schemas.registry import Bounds

Pair: TypeAlias = tuple[Decoded | None, Decoded | None]
"""The decoded key and value of a record; None for one without a schema."""
NOTHING: Pair = (None, None)


class Decoding:
    """The decoded contents of records, within the bounds of one request. Without a decoder, none is decoded."""

    def __init__(self, decoder: Decoder | None = None) -> None:
        self._decoder = decoder
        self._bounds = Bounds()
        self._kept: dict[tuple[int, int], Pair] = {}

    @property
    def is_used(self) -> bool:
        return self._decoder is not None

    def of(self, found: Sequence[Found]) -> list[Pair]:
        """The keys and values of records of one topic."""
        if self._decoder is None:
            return [NOTHING] * len(found)
        asked = [each for each in found if _place(each) not in self._kept]
        keys = [None if each.control else framed(each.record.key, each.record.headers, is_key=True) for each in asked]
        values = [None if each.control else framed(each.record.value, each.record.headers) for each in asked]
        decoded = self._decoder.decoded([*keys, *values], self._bounds)
        pairs = dict(
            zip(map(_place, asked), zip(decoded[: len(asked)], decoded[len(asked) :], strict=True), strict=True)
        )
        return [self._kept.get(place) or pairs[place] for place in map(_place, found)]

    def keep(self, found: Found, pair: Pair) -> None:
        """Remember the contents of a record that will be shown."""
        self._kept[_place(found)] = pair


def _place(found: Found) -> tuple[int, int]:
    return found.partition, found.record.offset
