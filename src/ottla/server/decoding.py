"""Decodes long requests on a separate thread, one after the other, while the event loop continues.

Decoding is a pure function of the bytes. The interpreter runs one thread at a time, so this is not faster. But the loop
waits for at most one thread switch instead of for a whole request.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ottla.broker.requests import Decoded
from ottla.server.beside import Beside


class Decoding:
    """The thread that decodes long requests."""

    def __init__(self, decode: Callable[[memoryview], Decoded]) -> None:
        self._decode = decode
        self._beside = Beside("ottla-decode")

    def decode(self, frame: memoryview, done: Callable[[memoryview, Decoded | Exception], None]) -> None:
        """Call done(frame, what was read or why it could not be) on the running loop."""

        def work() -> Decoded | Exception:
            try:
                return self._decode(frame)
            except Exception as error:
                return error

        self._beside.run(work, partial(done, frame))

    def stop(self) -> None:
        """Drop the waiting requests."""
        self._beside.stop()
