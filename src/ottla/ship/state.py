"""Keeps what survives a crash, in one small JSON file: the marks of the files, and where to read in the topic.

The file is replaced atomically: a crash leaves the old one or the new one. A state belongs to one topic of one cluster
and to one running shipper, which holds a lock on it.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ottla.ship.failures import ShipFailedError
from ottla.ship.follow import Mark

VERSION = 1


@dataclass(frozen=True, slots=True)
class Saved:
    """The contents of the state file."""

    cluster: str
    topic: str
    clean: bool
    """Whether the last run ended cleanly: then the marks cover every record that this shipper has in the topic."""
    tails: Mapping[int, int] = field(default_factory=dict)
    """Per partition: records of this shipper from this offset on may be missing in the marks."""
    marks: tuple[Mark, ...] = ()


def default_directory() -> Path:
    """The user's state directory (XDG) for the shipper, `ottla/ship`."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "ottla" / "ship"


class StateFile:
    """The state of one topic in a directory. Raises ShipFailedError if the directory cannot be used."""

    __slots__ = ("_lock", "_path")

    def __init__(self, directory: Path, topic: str) -> None:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._path = directory / f"{topic}.json"
            self._lock = os.open(directory / f"{topic}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ShipFailedError(f"The state can't be kept in {directory}: {error.strerror}.") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise ShipFailedError(
                f"Another shipper to {topic} uses the state in {directory}: give this one a --state of its own."
            ) from None

    def load(self) -> Saved | None:
        """The last saved state; None if there is none. Raises ShipFailedError if it cannot be read."""
        try:
            read = json.loads(self._path.read_bytes())
            return saved(read)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ShipFailedError(
                f"The state in {self._path} can't be read ({error}); moved away, all files are sent again."
            ) from None

    def save(self, state: Saved) -> None:
        """Replace the saved state; it is on the disk when this returns. Raises ShipFailedError."""
        written = {"version": VERSION, **asdict(state), "marks": [asdict(mark) for mark in state.marks]}
        text = json.dumps(written, indent=1, ensure_ascii=True)
        beside = self._path.with_suffix(".new")
        try:
            with open(beside, "w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, self._path)
            sync_directory(self._path.parent)
        except OSError as error:
            raise ShipFailedError(f"The state can't be saved in {self._path}: {error.strerror}.") from None

    def close(self) -> None:
        os.close(self._lock)


def saved(read: Mapping[str, Any]) -> Saved:
    if read["version"] != VERSION:
        raise ValueError(f"version {read['version']}, not {VERSION}")
    marks: Iterable[Mapping[str, Any]] = read["marks"]
    return Saved(
        cluster=read["cluster"],
        topic=read["topic"],
        clean=read["clean"],
        tails={int(partition): int(offset) for partition, offset in read["tails"].items()},
        marks=tuple(Mark(**mark) for mark in marks),
    )


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
