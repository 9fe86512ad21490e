"""Cleans up after an unfinished compaction or deletion in a log's directory.

`.cleaned` and `.tmp` files are unfinished and are removed; `.deleted` files are finished and are removed. A `.log.swap`
is a compaction that had decided, and is completed. Its batches are verified first. If one is damaged, the segments that
it replaces stay if they still exist.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ottla.log.answers import Damage
from ottla.log.epochs import EpochCache
from ottla.log.files import FileSystem
from ottla.log.index.offsets import RELATIVE_OFFSET_MAX, IndexCache
from ottla.log.names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIXES,
    SWAP_SUFFIX,
    UNFINISHED_SUFFIX,
    is_log,
    is_of_a_segment,
    offset_in,
)
from ottla.log.recovery.found import Found, What
from ottla.log.segment import Segment

LEFTOVERS: Final = (DELETED_SUFFIX, CLEANED_SUFFIX, UNFINISHED_SUFFIX)


class Leftovers:
    """The leftovers in one directory. Each action on them is reported to `note`."""

    def __init__(
        self,
        files: FileSystem,
        directory: str,
        cache: IndexCache,
        now: int,
        note: Callable[[str], None],
        found: Found,
    ) -> None:
        self.files = files
        self.directory = directory
        self.cache = cache
        self.now = now
        self.note = note
        self.found = found

    def clear(self, names: list[str]) -> list[str]:
        """Remove unfinished and finished files; complete a compaction that had decided. Returns the remaining names."""
        kept: list[str] = []
        for name in names:
            if name.endswith(LEFTOVERS):
                self.files.unlink(f"{self.directory}/{name}")
                self.note(f"{self.directory}: removed the leftover {name}.")
            else:
                kept.append(name)
        swaps = [name for name in kept if name.endswith(SWAP_SUFFIX)]
        if swaps:
            undecided = {name.split(".")[0] for name in names if name.endswith(".log.cleaned")}
            kept = self._complete_swaps(kept, swaps, undecided)
        return kept

    def _drop_without_log(self, names: list[str], swaps: list[str], undecided: set[str]) -> None:
        """Handle index files of a compaction whose log is not `.swap`: either not yet, while the old segments exist, or
        no longer. Names get lost one by one, so the new log may be beside the indexes of the old one: they are
        rebuilt."""
        for name in swaps:
            stem, _, kind = name.removesuffix(SWAP_SUFFIX).partition(".")
            if kind == "txnindex" and stem not in undecided:
                self.files.rename(f"{self.directory}/{name}", f"{self.directory}/{stem}.txnindex")
                names[names.index(name)] = f"{stem}.txnindex"
                continue
            for path in (name, f"{stem}.index", f"{stem}.timeindex"):
                if path in names:
                    self.files.unlink(f"{self.directory}/{path}")
                    names.remove(path)
            self.note(f"{self.directory}: removed {name} of a compaction that was cut short.")

    def _given_up(self, name: str, names: list[str]) -> bool:
        """Whether this compacted segment is damaged and was removed because the segments that it replaces still exist.
        If they do not, it replaces them with its damage. Raises OSError."""
        from ottla.log.checking import checking  # few logs have an unfinished compaction

        stem = name.removesuffix(f".log{SWAP_SUFFIX}")
        base = int(stem)
        swap = Segment(self.files, self.directory, base, self.cache, now=self.now, create=False, suffix=SWAP_SUFFIX)
        # A power cut may have torn its index, which is made again from it.
        checked = checking(swap, base + RELATIVE_OFFSET_MAX, EpochCache(), None, joins=False, indexed=False)
        damage = next((each for each in checked if isinstance(each, Damage)), None)
        swap.close()
        if damage is None:
            return False
        if f"{stem}.log" not in names:
            self.found.add(What.DAMAGED, f"{self.directory}: {damage}", first=damage.first, end=damage.end)
            return False
        for part in [each for each in names if each.endswith(SWAP_SUFFIX) and each.split(".")[0] == stem]:
            self.files.unlink(f"{self.directory}/{part}")
            names.remove(part)
        why = f"position {damage.position}, offset {damage.first}: {damage.why}"
        self.note(f"{self.directory}: removed {name}, which is damaged ({why}): the segments that it replaces stay.")
        return True

    def _complete_swaps(self, names: list[str], swaps: list[str], undecided: set[str]) -> list[str]:
        decided = [
            name for name in swaps if is_of_a_segment(name, f".log{SWAP_SUFFIX}") and not self._given_up(name, names)
        ]
        swaps = [name for name in swaps if name in names]
        bases = {name.removesuffix(f".log{SWAP_SUFFIX}") for name in decided}
        self._drop_without_log(names, [name for name in swaps if name.split(".")[0] not in bases], undecided)
        for name in decided:
            base = int(name.removesuffix(f".log{SWAP_SUFFIX}"))
            swap = Segment(self.files, self.directory, base, self.cache, now=self.now, create=False, suffix=SWAP_SUFFIX)
            covered_to = swap.next_offset()
            swap.close()
            for old in [old for old in names if is_log(old) and base <= offset_in(old) < max(covered_to, base + 1)]:
                for path in (f"{old.removesuffix('.log')}{suffix}" for suffix in (".log", *INDEX_SUFFIXES)):
                    if path in names:
                        self.files.unlink(f"{self.directory}/{path}")
                        names.remove(path)
        if decided:
            self.files.sync_directory(self.directory)
        # The indexes first: while the log is still a swap, a start after a crash here repeats this step.
        for name in sorted((n for n in names if n.endswith(SWAP_SUFFIX)), key=lambda n: (".log" in n, n)):
            final = name.removesuffix(SWAP_SUFFIX)
            self.files.rename(f"{self.directory}/{name}", f"{self.directory}/{final}")
            names[names.index(name)] = final
            self.note(f"{self.directory}: completed the compaction into {final}.")
        self.files.sync_directory(self.directory)
        return sorted(names)
