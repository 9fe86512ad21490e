"""Makes directories that replace a JAVA_HOME or a SPARK_HOME: links to the parts of the original, without some of them
or with replacements.

Invariant: a directory is complete as soon as it is visible, and other users cannot write to it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import shutil
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path

from ottla.spark.platform.caches import directories


def stand_in(kind: str, original: Path, *, without: Collection[str] = (), programs: Mapping[str, str] = {}) -> Path:
    """A directory like `original`, the parts named in `without` left out.

    `programs`: name to text of executables in its `bin`, in place of the original's. Made once per user and original,
    in a cache (`caches.py`). Raises OSError where none can be written.
    """
    parts = sorted(part.name for part in original.iterdir() if part.name not in without)
    made_of = [str(original), *parts, *(f"{name}\n{text}" for name, text in sorted(programs.items()))]
    name = f"{kind}-" + hashlib.sha256("\n".join(made_of).encode()).hexdigest()[:16]
    for directory in directories():
        with contextlib.suppress(OSError):
            made = directory / name
            if not made.is_dir():
                put(made, original, parts, programs)
            return made
    raise OSError(errno.EROFS, "there is no directory to make it in", str(original))


def put(made: Path, original: Path, parts: list[str], programs: Mapping[str, str]) -> None:
    """Make the directory under another name and rename it: of two that do so at once, either is right."""
    draft = Path(tempfile.mkdtemp(prefix=f".{made.name}-", dir=made.parent))
    try:
        for part in parts:
            if part != "bin" or not programs:
                (draft / part).symlink_to(original / part)
        if programs:
            replace_programs(draft / "bin", original / "bin", programs)
        draft.rename(made)
    except OSError:
        shutil.rmtree(draft, ignore_errors=True)
        if not made.is_dir():
            raise


def replace_programs(folder: Path, original: Path, programs: Mapping[str, str]) -> None:
    folder.mkdir()
    for program in original.iterdir():
        if program.name not in programs:
            (folder / program.name).symlink_to(program)
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
