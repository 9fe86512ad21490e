"""Keeps directories and files private to the node's user, whatever the umask is.

New directories get mode 0700, new files 0600. At a later start, a directory that all users can read or enter, because
of an umask, gets mode 0700 too. A directory that only a group can enter keeps its mode: an operator chose it. Files
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
"""Every data directory of Ottla contains one of these names."""
_OF_FILE_SYSTEMS: Final = frozenset(("lost+found",))


def make_directory(path: str | os.PathLike[str], *, is_ours: bool = False) -> str | None:
    """Create the directory if it is missing, and close it to other users. Returns a sentence if other users can still
    enter it. `is_ours`: only this node can have created it. Raises OSError."""
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
    """An opener for `open` that prevents other users from reading or writing the file. Raises OSError."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, FILE)
    if stat.S_IMODE(os.fstat(descriptor).st_mode) & _NOT_THE_OWNER:
        with suppress(OSError):  # the file belongs to another user
            os.fchmod(descriptor, FILE)
    return descriptor


def write(path: str | os.PathLike[str], text: str) -> None:
    """Replace the contents of the file. Raises OSError."""
    with open(path, "w", opener=opener) as file:
        file.write(text)


def make_file(path: str) -> None:
    """Create the file, empty, if it is missing. An existing file is not opened, because closing it would release this
    process's locks on it. Raises OSError if it cannot be created."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE))
    close_file(path)


def close_file(path: str) -> None:
    """Make an existing file private to its owner."""
    with suppress(OSError):
        if stat.S_IMODE(os.stat(path).st_mode) & _NOT_THE_OWNER:
            os.chmod(path, FILE)
