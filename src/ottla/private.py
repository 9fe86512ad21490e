"""Keeps directories and files from other users of the machine, whatever the umask is.

A directory that is made gets mode 0700, a file 0600. At a later start a directory that everybody can read or enter, as
an umask leaves it, gets mode 0700 too. One that is open to a group alone was opened by an operator: it stays so. Files
with secrets or metadata are always 0600.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import Final

DIRECTORY: Final = 0o700
FILE: Final = 0o600
_NOT_THE_OWNER: Final = stat.S_IRWXG | stat.S_IRWXO
_MARKS: Final = frozenset((".lock", "meta.properties", "cluster.json", "metadata.sqlite", "ottla.pid"))
"""One of these names is in every directory of ours."""
_OF_FILE_SYSTEMS: Final = frozenset(("lost+found",))


def make_directory(path: str | os.PathLike[str], *, is_ours: bool = False) -> str | None:
    """Let there be this directory, closed to other users; a sentence where it stays open to them. `is_ours`: nobody
    else can have made it. Raises OSError."""
    os.makedirs(path, mode=DIRECTORY, exist_ok=True)
    mode = os.stat(path).st_mode
    if not mode & stat.S_IRWXO:
        return None
    names = set(os.listdir(path)) - _OF_FILE_SYSTEMS
    if not is_ours and (mode & stat.S_ISVTX or (names and not names & _MARKS)):
        return f"Other users can enter {path}. It holds more than this node's files: choose a directory of its own."
    try:
        os.chmod(path, DIRECTORY)
    except OSError as error:
        return f"Other users can enter {path}, and its mode can't be changed to 0700: {error.strerror or error}."
    return None


def opener(path: str, flags: int) -> int:
    """For `open`: nobody else may read the file, or write it. Raises OSError."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, FILE)
    if stat.S_IMODE(os.fstat(descriptor).st_mode) & _NOT_THE_OWNER:
        with suppress(OSError):  # it is somebody else's
            os.fchmod(descriptor, FILE)
    return descriptor


def write(path: str | os.PathLike[str], text: str) -> None:
    """Write this file anew. Raises OSError."""
    with open(path, "w", opener=opener) as file:
        file.write(text)


def make_file(path: str) -> None:
    """Let there be this file, empty if it is new, without opening one that is there: to close it would drop the locks
    that this process has on it. Raises OSError where it can't be made."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE))
    close_file(path)


def close_file(path: str) -> None:
    """Keep other users from this file, if it is there."""
    with suppress(OSError):
        if stat.S_IMODE(os.stat(path).st_mode) & _NOT_THE_OWNER:
            os.chmod(path, FILE)
