"""Hears from the system that somebody has written a file, or let go of one: inotify, which Linux has.

A hint and no more. There may be none to have (a limit of the system's is reached), and a file is said to be let go of a
moment before the locks on it are free.

Source: inotify(7).
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Callable
from typing import Final

_WRITTEN: Final = 0x2
_LET_GO: Final = 0x8
_MADE: Final = 0x100
_BYTES: Final = 1 << 16


class FileNews:
    """Calls `heard` on the running loop, once for all that has happened. `written`: a file that somebody may write;
    `let_go`: a directory in which files may be made, and closed by who could write them, as those of a process that
    dies are. Raises OSError where the system tells nothing."""

    def __init__(self, heard: Callable[[], None], *, written: str, let_go: str) -> None:
        self._heard = heard
        self._loop = asyncio.get_running_loop()
        system = ctypes.CDLL(None, use_errno=True)
        self._file = _checked(system.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        try:
            _checked(system.inotify_add_watch(self._file, os.fsencode(written), _WRITTEN))
            _checked(system.inotify_add_watch(self._file, os.fsencode(let_go), _LET_GO | _MADE))
        except OSError:
            os.close(self._file)
            raise
        self._loop.add_reader(self._file, self._ready)

    def close(self) -> None:
        self._loop.remove_reader(self._file)
        os.close(self._file)

    def _ready(self) -> None:
        os.read(self._file, _BYTES)
        self._heard()


def _checked(answer: int) -> int:
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return answer
