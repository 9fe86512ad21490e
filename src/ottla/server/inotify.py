"""Reports that a process wrote or closed a file, through Linux's inotify.

The report is only a hint. inotify may be unavailable (a system limit is reached), and a close is reported shortly
before the locks on the file are released.

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
    """Calls `heard` on the running loop, once for all events since the last call.

    `written` is a file that any process may write. `let_go` is a directory; the events are files created in it, and
    writable files closed in it, which includes the files of a process that dies. Raises OSError if inotify is
    unavailable.
    """

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
