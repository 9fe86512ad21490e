"""Groups rows by key columns, in numpy: sums, counts and percentiles of each group.

Each operation is one sort and one pass, without a Python loop over rows or groups.
"""

# pyright: reportAttributeAccessIssue=false
# pyarrow.compute makes its functions when it is imported

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def codes_of(column: Any) -> tuple[np.ndarray, pa.Array]:
    """A number for each value, -1 for null, and the values by number. Numbers are in the values' order (of strings: of
    their bytes)."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    found = array.dictionary_encode()
    order = pc.sort_indices(found.dictionary)
    ranks = np.empty(len(order), np.int64)
    ranks[order.to_numpy()] = np.arange(len(order))
    numbers = found.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return np.where(numbers < 0, -1, ranks[numbers] if len(ranks) else -1), found.dictionary.take(order)


def longs(column: Any) -> np.ndarray:
    """A column of whole numbers or moments (in us); null is 0."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return array.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)


def flags(column: Any) -> np.ndarray:
    """A column of booleans; null is false."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return array.cast(pa.bool_()).fill_null(False).to_numpy(zero_copy_only=False)


class Groups:
    """Rows by the number of their group, from 0 to `count` - 1; each group has at least one row."""

    def __init__(self, numbers: np.ndarray, count: int) -> None:
        self.numbers = numbers
        self.count = count
        self._order = np.argsort(numbers, kind="stable")
        self._starts = np.searchsorted(numbers[self._order], np.arange(count))

    def rows(self, where: np.ndarray | None = None) -> np.ndarray:
        """Count the rows of each group; `where`: only rows for which it is true."""
        numbers = self.numbers if where is None else self.numbers[where]
        return np.bincount(numbers, minlength=self.count)

    def sums(self, values: np.ndarray) -> np.ndarray:
        return self._reduced(np.add, values)

    def least(self, values: np.ndarray) -> np.ndarray:
        return self._reduced(np.minimum, values)

    def greatest(self, values: np.ndarray) -> np.ndarray:
        return self._reduced(np.maximum, values)

    def any(self, values: np.ndarray) -> np.ndarray:
        return self._reduced(np.logical_or, values)

    def _reduced(self, how: np.ufunc, values: np.ndarray) -> np.ndarray:
        return how.reduceat(values[self._order], self._starts) if self.count else values[:0]

    def distinct(self, codes: np.ndarray) -> np.ndarray:
        """Count the distinct codes of each group, without -1."""
        there = codes >= 0
        width = int(codes.max(initial=0)) + 1
        pairs = np.unique(self.numbers[there] * width + codes[there])
        return np.bincount(pairs // width, minlength=self.count)

    def percentiles(self, values: np.ndarray, where: np.ndarray, shares: tuple[float, ...]) -> list[pa.Array]:
        """Interpolate between the two nearest rows for which `where` is true, as Spark's `percentile` does; null
        without rows."""
        numbers, kept = self.numbers[where], values[where]
        ordered = kept[np.lexsort((kept, numbers))]
        many = np.bincount(numbers, minlength=self.count)
        starts, none = np.cumsum(many) - many, many == 0
        if not len(ordered):
            return [pa.nulls(self.count, pa.float64()) for _ in shares]
        found: list[pa.Array] = []
        for share in shares:
            place = np.maximum(many - 1, 0) * share
            low = np.floor(place)
            below, above = (
                ordered[np.minimum(starts + each.astype(np.int64), len(ordered) - 1)].astype(np.float64)
                for each in (low, np.ceil(place))
            )
            between = below + (place - low) * (above - below)
            found.append(pa.array(between, pa.float64(), mask=none))
        return found


def grouped(keys: np.ndarray) -> tuple[np.ndarray, Groups]:
    """The different keys in their order, and the rows by them."""
    found, numbers = np.unique(keys, return_inverse=True)
    return found, Groups(numbers.astype(np.int64), len(found))
