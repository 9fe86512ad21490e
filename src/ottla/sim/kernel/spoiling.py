"""Spoils the files of a simulated disk, while its node is down or runs: bits flip, files are cut or lost, or old files
come back.

Each kind of damage returns a sentence for the trace. It ignores the meaning of the files.

Source: Alagappan et al., "Protocol-Aware Recovery for Consensus-Based Storage" (FAST 2018).
"""

import random
from collections.abc import Callable
from contextlib import suppress

from ottla.protocol.records.batch import iter_batches
from ottla.protocol.records.errors import CorruptRecordsError
from ottla.sim.kernel.disk import Disk


class Spoiler:
    """Damages the files of one disk. `disk`: where a node's data directory is. `in_parts`: single files and directories
    come back too. `tails`: while the node is down, logs lose whole batches at their ends, and volumes go back."""

    def __init__(
        self, disk: Disk, directory: str, rng: random.Random, *, in_parts: bool = False, tails: bool = False
    ) -> None:
        self._disk = disk
        self._in_parts = in_parts
        self._tails = tails
        self._directory = directory
        self._rng = rng
        self._backup: dict[str, bytes] = {}
        self._hot: dict[str, bytes] = {}
        self._write: Callable[[str, bytes], None] = disk.put

    def of(self, disk: Disk) -> "Spoiler":
        """A spoiler of another disk, with the same backup."""
        other = Spoiler(disk, self._directory, self._rng, in_parts=self._in_parts, tails=self._tails)
        other._backup = self._backup
        return other

    @property
    def has_backup(self) -> bool:
        """Whether there is a copy to restore."""
        return bool(self._backup)

    def back_up(self) -> None:
        """Copy the data directory."""
        self._backup = {path: self._disk.content(path) for path in self._files()}

    def begin_hot_copy(self) -> None:
        """Copy about half of the files now, while the node runs; `end_hot_copy` copies the others."""
        self._hot = {path: self._disk.content(path) for path in self._files() if self._rng.random() < 0.5}

    def end_hot_copy(self) -> None:
        """The hot copy is the backup from now on."""
        rest = {path: self._disk.content(path) for path in self._files() if path not in self._hot}
        self._backup = {**self._hot, **rest}

    def spoil_running(self) -> str:
        """Do one kind of damage beneath the node, which may have the files open: as another process does, and as a disk
        does whose pages the system reads again."""
        self._write = self._overwrite
        try:
            return self._spoil(self._kinds())
        finally:
            self._write = self._disk.put

    def _overwrite(self, path: str, content: bytes) -> None:
        if self._disk.exists(path) and self._rng.random() < 0.8:
            self._disk.overwrite(path, content)
        else:
            self._disk.put(path, content)  # another file of this name; the node writes to the one that it has open

    def spoil(self) -> str:
        """Do one kind of damage."""
        kinds = self._kinds()
        if self._tails:
            kinds += [self._cut_tail] * 6 + [self.restore_volume] * (2 * self.has_backup)
        return self._spoil(kinds)

    def _spoil(self, kinds: list[Callable[[], str]]) -> str:
        self._disk.settle_everything()
        return self._rng.choice(kinds)()

    def _kinds(self) -> list[Callable[[], str]]:
        kinds = [self._flip_bit] * 3 + [self._cut_file] * 2 + [self._lose_file] * 2 + [self._lose_directory]
        if self._backup:
            kinds += [self._restore_any] * 2
            kinds += [self._restore_file, self._restore_directory] * self._in_parts
        return kinds

    def make_unreadable(self) -> str:
        """Let some place in a segment or an index not be read any more, until it is cut off."""
        kinds = (".log", ".log", "index")
        chosen = [path for path in self._files() if path.endswith(self._rng.choice(kinds)) and self._disk.size(path)]
        if not chosen:
            return "has nothing that could not be read"
        path = self._rng.choice(chosen)
        size = self._disk.size(path)
        first = self._rng.randrange(size)
        self._disk.make_unreadable(path, range(first, first + self._rng.choice((1, size))))
        return f"can't read {path} from position {first} on"

    def _files(self) -> list[str]:
        return [path for path in self._disk.files() if path.startswith(f"{self._directory}/")]

    def _any_file(self) -> str | None:
        files = [path for path in self._files() if self._disk.size(path)]
        logs = [path for path in files if path.endswith(".log")]
        return self._rng.choice(logs if logs and self._rng.random() < 0.5 else files) if files else None

    def _flip_bit(self) -> str:
        path = self._any_file()
        if path is None:
            return "has nothing to flip a bit of"
        content = bytearray(self._disk.content(path))
        bit = self._rng.randrange(8 * len(content))
        content[bit // 8] ^= 1 << bit % 8
        self._write(path, bytes(content))
        return f"has bit {bit} of {path} flipped"

    def _cut_file(self) -> str:
        path = self._any_file()
        if path is None:
            return "has no file to cut"
        content = self._disk.content(path)
        size = self._rng.randrange(len(content))
        self._write(path, content[:size])
        return f"has {path} cut from {len(content)} to {size} bytes"

    def _cut_tail(self) -> str:
        """Cut some batches off the end of a log."""
        logs = sorted(path for path in self._files() if path.endswith(".log") and self._disk.size(path))
        newest = sorted({path.rpartition("/")[0]: path for path in logs}.values())
        return self.cut_batches(self._rng.choice(newest), self._rng.random() / 2) if newest else "has no log to cut"

    def cut_batches(self, path: str, share: float) -> str:
        """Cut about this share of the batches off the end of a segment, at least one: what is left looks whole."""
        self._disk.settle_everything()
        content = self._disk.content(path)
        places: list[int] = []
        with suppress(CorruptRecordsError):  # it was damaged before
            places.extend(position for _, position in iter_batches(content))
        size = places[min(int(len(places) * (1 - share)), len(places) - 1)] if places else 0
        self._write(path, content[:size])
        return f"has {path} cut from {len(content)} to {size} bytes, between two batches"

    def _lose_file(self) -> str:
        path = self._any_file()
        if path is None:
            return "has no file to lose"
        self._disk.put(path, None)
        return f"has lost {path}"

    def _lose_directory(self) -> str:
        directories = sorted({path.rpartition("/")[0] for path in self._files()})
        if not directories:
            return "has no directory to lose"
        lost = self._rng.choice(directories)
        self._lose(lost)
        return f"has lost {lost}"

    def _lose(self, directory: str) -> None:
        for path in self._files():
            if path.startswith(f"{directory}/"):
                self._disk.put(path, None)
        self._disk.drop_empty_directories()

    def _restore_any(self) -> str:
        return self.restore(whole=self._rng.random() < 0.5)

    def _restore_file(self) -> str:
        path = self._rng.choice(sorted(self._backup))
        self._write(path, self._backup[path])
        return f"has {path} restored from a backup"

    def _restore_directory(self) -> str:
        """Restore the files of one directory, in place of the newer ones or over them."""
        directories = sorted({path.rpartition("/")[0] for path in self._backup} - {self._directory})
        if not directories:
            return "has no directory to restore"
        directory = self._rng.choice(directories)
        if whole := self._rng.random() < 0.5:
            self._lose(directory)
        for path, content in self._backup.items():
            if path.startswith(f"{directory}/"):
                self._write(path, content)
        return f"has {directory} restored from a backup, {'whole' if whole else 'over what is there'}"

    def restore_volume(self) -> str:
        """Restore the backup as a snapshot of the volume does: each file has the identity that it had."""
        self._disk.settle_everything()
        for path in self._files():
            if path not in self._backup:
                self._disk.put(path, None)
        for path, content in self._backup.items():
            if self._disk.exists(path):
                self._disk.overwrite(path, content, keeps_identity=True)
            else:
                self._disk.put(path, content)
        return f"has the volume of {self._directory} restored from a snapshot"

    def restore(self, *, whole: bool) -> str:
        """Restore the backup: replace the whole directory, or copy over the existing files, without hidden files."""
        if whole:
            self._lose(self._directory)
        kept = {path: content for path, content in self._backup.items() if whole or "/." not in path}
        for path, content in kept.items():
            self._write(path, content)
        return f"has {self._directory} restored from a backup, {'whole' if whole else 'over what is there'}"
