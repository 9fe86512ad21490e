"""Scans the file system for files under paths, directories and patterns, and reads bytes of them.

Hidden files and compressed files (whose lines cannot be read) are skipped unless they are named one by one.
"""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Iterable, Iterator, Sequence

from ottla.ship.catalog import SeenFile

COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip", ".Z", ".7z")

SUFFIXES = (".log", ".txt", ".out", ".err", ".json", ".jsonl", ".ndjson")


def seen_files(patterns: Iterable[str]) -> list[SeenFile]:
    """Every regular file that the patterns match, by name; a directory means all files under it."""
    found: dict[str, SeenFile] = {}
    for pattern in patterns:
        for path in named(pattern):
            seen_file = file_at(path)
            if seen_file is not None:
                found.setdefault(seen_file.path, seen_file)
    return [found[path] for path in sorted(found)]


def named(pattern: str) -> Iterator[str]:
    """The paths that a path, directory or pattern (`*`, `?`, `[...]`, `**`) matches."""
    if os.path.isdir(pattern):
        yield from under(pattern)
    elif os.path.lexists(pattern) or not glob.has_magic(pattern):
        yield pattern
    else:
        for path in glob.iglob(pattern, recursive=True):
            if not path.endswith(COMPRESSED):
                yield path


def under(directory: str) -> Iterator[str]:
    for parent, directories, names in os.walk(directory):
        directories[:] = sorted(each for each in directories if not each.startswith("."))
        for name in names:
            if not name.startswith(".") and not name.endswith(COMPRESSED):
                yield os.path.join(parent, name)


def file_at(path: str) -> SeenFile | None:
    """A regular file by its absolute name; None if it is missing or not a regular file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return SeenFile(os.path.abspath(path), found.st_dev, found.st_ino, found.st_size)


def beside(path: str) -> Sequence[SeenFile]:
    """The other files in a file's directory, newest first."""
    directory = os.path.dirname(path)
    try:
        names = [os.path.join(directory, name) for name in os.listdir(directory) if not name.endswith(COMPRESSED)]
    except OSError:
        return []
    found = [each for each in map(file_at, names) if each is not None and each.path != path]
    return sorted(found, key=lambda each: -changed_ns(each.path))


def changed_ns(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def peek(path: str, start: int, size: int) -> bytes:
    """Implements `ottla.ship.catalog.Peek` on the file system."""
    if size <= 0:
        return b""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        return os.pread(descriptor, size, start)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def named_service(path: str) -> str:
    """The service name in a file name: `openssh` for openssh.log, openssh.log.1 and openssh-20260131.log.

    If there is nothing to cut off, it is the whole file name.
    """
    name = os.path.basename(path)
    parts = name.split(".")
    while len(parts) > 1 and (parts[-1].isdigit() or "." + parts[-1] in SUFFIXES or is_date(parts[-1])):
        parts.pop()
    stem, dash, tail = ".".join(parts).rpartition("-")
    return stem if dash and stem and is_date(tail) else ".".join(parts) or name


def is_date(text: str) -> bool:
    digits = text.replace("-", "").replace("_", "")
    return digits.isdigit() and len(digits) in {8, 10, 12, 14}
