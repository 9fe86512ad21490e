"""Waiting for what another thread, process or node does, where the test gets no event for it.

A test that can wait for an event, such as an answer, a line or a file descriptor, waits for that. To show that nothing
happens, a test waits for something that happens later.
"""

import asyncio
import functools
import selectors
import time
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

P = ParamSpec("P")
PATIENCE_S = 60.0
"""Far more than anything takes on a busy machine."""
SPARKS_PATIENCE_S = 200.0
"""The same for what begins with the start of a JVM."""
_BETWEEN_S = 0.02


def soon(holds: Callable[[], object], what: object = "what it waits for", *, patience_s: float = PATIENCE_S) -> None:
    """Return once this is true. `what`: shown in the failure; a function is called for it."""
    until = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < until, f"not within {patience_s:g} s: {what() if callable(what) else what}"
        time.sleep(_BETWEEN_S)


async def soon_in_loop(holds: Callable[[], object], what: str = "what it waits for") -> None:
    """The same in an event loop, whose other tasks run meanwhile."""
    until = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < until, f"not within {PATIENCE_S:g} s: {what}"
        await asyncio.sleep(_BETWEEN_S / 10)


class _Selector(selectors.SelectSelector):
    """Polls its files; the time for which it would wait passes at once."""

    def __init__(self) -> None:
        super().__init__()
        self.passed = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0 if timeout is not None else None)
        if not ready and timeout is not None:
            self.passed += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock runs only while every task sleeps, and then jumps to the next timer."""

    def __init__(self) -> None:
        self._polled = _Selector()
        super().__init__(self._polled)

    def time(self) -> float:
        return self._polled.passed


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an asynchronous test in a virtual loop, where a sleep of any length takes no time."""

    @functools.wraps(test)
    def run(*args: P.args, **named: P.kwargs) -> None:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(test(*args, **named))

    return run
