"""Writes the audit log: one JSON object a line, in a file of its own that only the node's user can read.

A thread writes, while the event loop continues. Once the file has reached its size, it becomes FILE.1, FILE.1 becomes
FILE.2, and so on; the oldest is removed. A file that was moved or deleted from outside is created again.

If a line can't be written, for example because the disk is full, the node continues. The log reports it once, and the
first line that is written afterwards has the number of lost ones.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial

from ottla.escaping import UNSEEN
from ottla.private import opener
from ottla.server.beside import Beside
from ottla.server.refusals import SettingsRefusedError

WAITING_MAX = 10_000
"""How many records may wait for the thread. Further ones are lost, and counted."""

log = logging.getLogger("ottla.audit")


class AuditLog:
    """The file. Raises SettingsRefusedError if it can't be opened."""

    def __init__(self, path: str, bytes_max: int, files_max: int) -> None:
        self._path = path
        self._bytes_max = bytes_max
        self._files_max = files_max
        self._beside = Beside("ottla-audit")
        self._waiting: list[Mapping[str, object]] = []
        self._is_writing = False
        self._lost = 0
        """Records that were too many to wait, or could not be written, since the last line."""
        self._failed = False
        try:
            self._file = self._open()
        except OSError as error:
            raise SettingsRefusedError(
                f"The audit log {path} can't be opened: {error.strerror or error}. Name a file in a directory that the "
                "node can write to in ottla.audit.location."
            ) from None

    def write(self, record: Mapping[str, object]) -> None:
        """Append the record soon."""
        if len(self._waiting) >= WAITING_MAX:
            self._lost += 1
            return
        self._waiting.append(record)
        if not self._is_writing:
            self._begin()

    def stop(self) -> None:
        """Append what waits, and close the file."""
        self._beside.finish()
        while self._waiting:
            self._written(*self._take())
        if self._file is not None:
            os.close(self._file)
            self._file = None

    # ---- on the loop -----------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._is_writing = True
        self._beside.run(self._take_work(), self._done)

    def _take_work(self) -> partial[tuple[int, str | None]]:
        records, self._waiting = self._waiting, []
        lost, self._lost = self._lost, 0
        return partial(self._append, records, lost)

    def _take(self) -> tuple[int, str | None]:
        return self._take_work()()

    def _done(self, outcome: tuple[int, str | None]) -> None:
        self._is_writing = False
        self._written(*outcome)
        if self._waiting and self._file is not None:
            self._begin()

    def _written(self, lost: int, why: str | None) -> None:
        self._lost += lost
        if why is not None and not self._failed:
            log.error("The audit log %s can't be written: %s. The node continues without it.", self._path, why)
        elif why is None and self._failed:
            log.warning("The audit log %s can be written again.", self._path)
        self._failed = why is not None

    # ---- on the thread ---------------------------------------------------------------------------------------------

    def _append(self, records: list[Mapping[str, object]], lost: int) -> tuple[int, str | None]:
        """(how many records are lost, why: None if all are written)."""
        text = "".join(
            _line(record if at or not lost else {**record, "lost": lost}) for at, record in enumerate(records)
        )
        try:
            file = self._current()
            size = os.fstat(file).st_size
            if size and size + len(text) > self._bytes_max:
                file = self._rotate(file)
                size = os.fstat(file).st_size
            octets = text.encode()
            try:
                while octets:
                    octets = octets[os.write(file, octets) :]
            except OSError:
                os.ftruncate(file, size)  # no half of a line stays
                raise
        except OSError as error:
            return lost + len(records), error.strerror or str(error)
        return 0, None

    def _current(self) -> int:
        """The open file, which is the one of this name."""
        if self._file is not None:
            with suppress(OSError):
                if os.path.samestat(os.stat(self._path), os.fstat(self._file)):
                    return self._file
            os.close(self._file)
            self._file = None
        self._file = self._open()
        return self._file

    def _rotate(self, file: int) -> int:
        """Begin a new file, and keep the old ones under the next number."""
        for number in range(self._files_max - 1, 0, -1):
            older = self._path if number == 1 else f"{self._path}.{number - 1}"
            with suppress(FileNotFoundError):
                os.replace(older, f"{self._path}.{number}")
        if self._files_max == 1:
            os.ftruncate(file, 0)
            return file
        return self._current()

    def _open(self) -> int:
        return opener(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW)


def _line(record: Mapping[str, object]) -> str:
    moment = datetime.fromtimestamp(int(str(record["time"])) / 1000, UTC)
    shown = {**record, "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")}
    text = json.dumps(shown, ensure_ascii=False)
    return UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n"
