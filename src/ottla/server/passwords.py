"""Derives the keys of passwords on threads, while the event loop continues: each takes milliseconds.

Source: the effect `Derive`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ottla.broker.effects import Derive
from ottla.server.beside import Beside

THREADS = 2
"""OpenSSL derives without the interpreter's lock."""


class Passwords:
    """The threads that derive."""

    def __init__(self, derived: Callable[[int, str, bytes], None]) -> None:
        self._derived = derived
        self._beside = Beside("ottla-passwords", THREADS)

    def derive(self, effect: Derive) -> None:
        """Call derived(token, mechanism, salted password) on the running loop."""
        from ottla.protocol.scram import salted  # most nodes start without it

        work = partial(salted, effect.mechanism, effect.password, effect.salt, effect.iterations)
        self._beside.run(work, partial(self._derived, effect.token, effect.mechanism))

    def stop(self) -> None:
        """Drop the waiting passwords."""
        self._beside.stop()
