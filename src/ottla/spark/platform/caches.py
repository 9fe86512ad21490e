"""Chooses the directory for what can be made again: machine code, directories of links.

In the first of these that can be used: `$OTTLA_CACHE_DIR`, `$XDG_CACHE_HOME/ottla`, `~/.cache/ottla`, a directory of
the user's own under the temporary one. One that others may write to is never used: what lies there is executed.
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
