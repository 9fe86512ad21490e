"""What a running pipeline shows: rows per second, lag per partition, state, how long a batch took.

Knows: Spark's progress reports. Does not know: Spark itself. On a terminal a live table, otherwise a line every few
seconds on stderr.
"""

from __future__ import annotations

import sys
import time
from typing import Any, Self

LINE_EVERY_S = 5.0


class View:
    """A context manager; `take` each report, `draw` now and then, `say` what a person must know."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._last: dict[str, dict[str, Any]] = {}
        self._rows: dict[str, int] = {}
        self._drawn = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def take(self, name: str, progress: dict[str, Any]) -> None:
        self._rows[name] = self._rows.get(name, 0) + progress["numInputRows"]
        self._last[name] = progress

    def draw(self) -> None:
        if self._quiet or time.monotonic() - self._drawn < LINE_EVERY_S:
            return
        self._drawn = time.monotonic()
        for name, progress in self._last.items():
            self.say(f"{name}: {self._rows[name]:,} rows, {progress['processedRowsPerSecond'] or 0:,.0f} rows/s")
