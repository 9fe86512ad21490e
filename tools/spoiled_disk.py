"""Damages the files of a node's data directory, whether the node is down or runs, as disks and operators do.

A bit flips, a file is cut, a file or a directory is removed, or an earlier copy comes back: in place of the directory,
or over it. The meaning of the files is ignored.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path


class SpoiledDisk:
    """The disk of one node. `copies`: a directory for copies of its files; `strikes`: the damage done."""

    def __init__(self, node: int, data: Path, copies: Path, rng: random.Random) -> None:
        self.node = node
        self.strikes: list[str] = []
        self._data = data
        self._copy = copies / str(node)
        self._rng = rng

    def copy(self) -> None:
        """Copy the data directory, which may change meanwhile."""
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(self._data, self._copy, copy_function=_copied, dirs_exist_ok=True)
        self.strikes.append("its directory is copied")

    def spoil(self) -> None:
        """Do one kind of damage."""
        kinds: list[Callable[[], str]] = [self._flip] * 3 + [self._cut] * 2 + [self._lose] * 2 + [self._lose_directory]
        if self._copy.exists():
            kinds += [self._restore_whole, self._restore_over]
        self.strikes.append(self._rng.choice(kinds)())

    def _any_file(self) -> Path | None:
        files = sorted(path for path in self._data.rglob("*") if path.is_file() and path.stat().st_size)
        logs = [path for path in files if path.suffix == ".log"]
        return self._rng.choice(logs if logs and self._rng.random() < 0.5 else files) if files else None

    def _flip(self) -> str:
        path = self._any_file()
        if path is None:
            return "there is no file"
        with path.open("r+b") as file:
            at = self._rng.randrange(path.stat().st_size)
            file.seek(at)
            octet = file.read(1)[0] ^ 1 << self._rng.randrange(8)
            file.seek(at)
            file.write(bytes([octet]))
        return f"a bit of byte {at} of {self._named(path)} flips"

    def _cut(self) -> str:
        path = self._any_file()
        if path is None:
            return "there is no file"
        size = path.stat().st_size
        left = self._rng.randrange(size)
        with path.open("r+b") as file:
            file.truncate(left)
        return f"{self._named(path)} is cut from {size} to {left} bytes"

    def _lose(self) -> str:
        path = self._any_file()
        if path is None:
            return "there is no file"
        path.unlink(missing_ok=True)
        return f"{self._named(path)} is removed"

    def _lose_directory(self) -> str:
        directories = [self._data, *sorted(path for path in self._data.iterdir() if path.is_dir())]
        lost = self._rng.choice(directories)
        shutil.rmtree(lost, ignore_errors=True)
        self._data.mkdir(mode=0o700, exist_ok=True)
        return f"{'everything' if lost == self._data else lost.name} is removed"

    def _restore_whole(self) -> str:
        shutil.rmtree(self._data, ignore_errors=True)
        shutil.copytree(self._copy, self._data, dirs_exist_ok=True)
        return "the copy comes back in place of the directory"

    def _restore_over(self) -> str:
        for path in sorted(self._copy.rglob("*")):
            target = self._data / path.relative_to(self._copy)
            if path.is_file() and not path.name.startswith("."):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
        return "the copy comes back over the directory"

    def _named(self, path: Path) -> str:
        return str(path.relative_to(self._data))


def _copied(source: str, target: str) -> None:
    """Copy a file, unless it is gone meanwhile."""
    try:
        shutil.copyfile(source, target)
    except FileNotFoundError:
        return
