"""Chooses the directory for files that can be regenerated: machine code, directories of links.

It is the first usable one of `$OTTLA_CACHE_DIR`, `$XDG_CACHE_HOME/ottla`, `~/.cache/ottla`, and a directory of the
user's own in the temporary directory. A directory that others may write to is never used, because its files are
executed.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


def directories() -> Iterator[Path]:
    """The directories that can be used, made where they are missing, the best first."""
    for path in candidates():
        with contextlib.suppress(OSError):
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            if is_ours(path.stat()):
                yield path


def candidates() -> Iterator[Path]:
    for variable, below in (("OTTLA_CACHE_DIR", "."), ("XDG_CACHE_HOME", "ottla")):
        if os.environ.get(variable):
            yield Path(os.environ[variable], below)
    with contextlib.suppress(RuntimeError):  # a user without a home
        yield Path.home() / ".cache" / "ottla"
    yield Path(tempfile.gettempdir(), f"ottla-{os.getuid()}")


def is_ours(status: os.stat_result) -> bool:
    """Whether this user alone may write there."""
    return status.st_uid == os.getuid() and not status.st_mode & 0o022
