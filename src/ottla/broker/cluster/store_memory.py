"""Remembers how far this node has seen the metadata store, so that its next start notices an older one.

    .metadata-seen    generation=107
                      starts=88:NAME,90:NAME     the newest entries of the history (`metadata.history`) by then
                      lost=7                     commits found missing, until the controller has seen the node's row
                      forgotten=1                only if an earlier file was lost, until the node's partitions are led
                      checksum=3735928559        CRC-32C of the lines before; files of earlier versions have none

A damaged file must not look like a store that was restored: then every partition of the cluster would wait for all of
its replicas. So a file whose checksum does not match is not used.

The node writes this file in its data directory before it acts on a commit that must not be lost: a leader epoch of a
partition that it has a replica of, or a smaller set of in-sync or eligible replicas. Whatever it acknowledges later
depends on that commit. So a store that lacks the commit is older than what the file says. With `fsync` durability the
file is synced.

A start compares the file with the store, and begins with a commit of its own: it adds the start to the history, under a
number above all that this node has seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from ottla.broker.cluster.members import NOBODY
from ottla.log.checkpoints import SEEN_FILE, CheckpointUnreadableError, read_properties
from ottla.log.files import FileSystem
from ottla.metadata.history import ENTRIES_REMEMBERED, HISTORY, HISTORY_KEY, HistoryRecord, lost_commits
from ottla.metadata.image import MetadataImage
from ottla.metadata.store import (
    ABSENT,
    CommitUnknownError,
    ConflictError,
    MetadataStore,
    Put,
    StoreError,
    Versioned,
    decoded,
)
from ottla.metadata.topics import PartitionRecord
from ottla.protocol.records.checksum import crc32c

ATTEMPTS_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """The findings of a start of a node. `lost_commits`: how many commits are missing that this node has seen, or that
    the store itself knows of; 0 if none is. `seen`: the newest generation that the node had seen before."""

    lost_commits: int = 0
    seen: int = 0


@dataclass(frozen=True, slots=True)
class Seen:
    """The contents of the file."""

    generation: int
    starts: tuple[tuple[int, str], ...] = ()
    lost: int = 0
    forgotten: bool = False
    """An earlier file was missing, damaged, or older than the node, so its content is unknown."""

    def encode(self) -> bytes:
        starts = ",".join(f"{generation}:{name}" for generation, name in self.starts)
        lines = f"generation={self.generation}\nstarts={starts}\nlost={self.lost}\n".encode()
        lines += b"forgotten=1\n" if self.forgotten else b""
        return lines + f"checksum={crc32c(lines)}\n".encode()


def read_seen(files: FileSystem, path: str) -> Seen | None:
    """None without the file. Raises CheckpointUnreadableError, OSError."""
    properties = read_properties(files, path)
    if properties is None:
        return None
    try:
        pairs = [entry.partition(":") for entry in properties["starts"].split(",") if entry]
        starts = tuple((int(generation), name) for generation, _, name in pairs)
        forgotten = properties.get("forgotten") == "1"
        seen = Seen(int(properties["generation"]), starts, int(properties["lost"]), forgotten)
    except (KeyError, ValueError) as error:
        raise CheckpointUnreadableError(f"{path} does not say which metadata the node has seen: {error}") from error
    others = properties.keys() - {"generation", "starts", "lost"}
    if others and f"checksum={properties.get('checksum')}\n".encode() not in seen.encode():
        raise CheckpointUnreadableError(f"{path} does not match its checksum")
    return seen


class StoreMemory:
    """See the module's docstring. `durable`: whether each write is synced."""

    def __init__(
        self, files: FileSystem, directory: str, node_id: int, warn: Callable[[str], None], *, durable: bool
    ) -> None:
        self._files = files
        self._path = f"{directory}/{SEEN_FILE}"
        self._node_id = node_id
        self._warn = warn
        self._durable = durable
        self._lost = 0
        self._failed = False
        self.forgotten = False
        """Whether the file was missing or damaged, or is older than the node."""

    # ---- start and stop --------------------------------------------------------------------------------------------

    def begin(self, store: MetadataStore, name: str) -> StoreStatus:
        """Compare the store with the file, and add this start, of that name, to the store's history.

        Afterwards `store.lost` is the number of missing commits. Raises StoreError, OSError.
        """
        try:
            seen = read_seen(self._files, self._path) or Seen(0, forgotten=True)
        except CheckpointUnreadableError as unreadable:
            self._warn(f"{unreadable}; an older metadata store would not be noticed by it")
            seen = Seen(0, forgotten=True)
        self.forgotten = seen.forgotten
        lost = max(seen.lost, store.lost)
        store.rise(seen.generation)
        for _ in range(ATTEMPTS_MAX):
            newest = store.generation
            row = store.get(HISTORY_KEY)
            known = None if row is None else _record(store, row)
            entries = () if known is None else known.entries
            if known is None or known.newest != name:
                lost = max(lost, lost_commits(seen.generation, seen.starts, entries, newest))
                before = newest if store.lost or newest < seen.generation else None
                record = HistoryRecord(name, before) if known is None else known.followed_by(name, before)
                with suppress(ConflictError, CommitUnknownError):  # the next read shows what is stored
                    store.commit([Put(HISTORY_KEY, record.encode(), ABSENT if row is None else row.version)])
                continue
            self._lost = store.lost = lost
            self._write(Seen(known.version, _starts(known), lost, self.forgotten), durable=True)
            return StoreStatus(lost, seen.generation)
        raise StoreError(f"other nodes write to the metadata store {store.place} all the time; try again")

    def compared(self, image: MetadataImage, *, knows_store: bool) -> None:
        """The node has registered; `knows_store`: the file counts, as far as the cluster knows this node."""
        if self.forgotten == knows_store:
            self.forgotten = not knows_store
            self._note(image, durable=True)

    def finish(self, image: MetadataImage) -> None:
        """Write the file for a clean stop."""
        self._note(image, durable=True)

    # ---- while the node serves -------------------------------------------------------------------------------------

    def follow(self, before: MetadataImage, image: MetadataImage, topics: Iterable[str]) -> None:
        """The image has moved, and these topics of it with it; the node has not acted on that yet."""
        if any(self._matters(before, image, name) for name in topics):
            self.forgotten = self.forgotten and self._waits(image)
            self._note(image, durable=self._durable)

    def reported(self, image: MetadataImage) -> None:
        """The controller has seen this node's row, with the missing commits that its start found."""
        if self._lost:
            self._lost = 0
            self._note(image, durable=self._durable)

    def _matters(self, before: MetadataImage, image: MetadataImage, name: str) -> bool:
        """Whether a partition here got another leader epoch, or has fewer replicas in sync or eligible."""
        old, new = before.topics.get(name), image.topics.get(name)
        if new is None:
            return False
        known = () if old is None or old.id != new.id else old.partitions
        return any(
            placed is not was and self._node_id in placed.replicas and (was is None or _differs(was, placed))
            for placed, was in zip(new.partitions, (*known, *[None] * len(new.partitions)), strict=False)
        )

    def _waits(self, image: MetadataImage) -> bool:
        """Whether a partition here has no leader."""
        placed = (each for topic in image.topics.values() for each in topic.partitions)
        return any(each.leader == NOBODY and self._node_id in each.replicas for each in placed)

    def _note(self, image: MetadataImage, *, durable: bool) -> None:
        try:
            self._write(Seen(image.generation, _starts(image[HISTORY]), self._lost, self.forgotten), durable=durable)
        except OSError as error:
            if not self._failed:
                self._warn(
                    f"{self._path} can't be written: {error}. The next start would not notice that the metadata store "
                    "was restored from an older backup"
                )
            self._failed = True
        else:
            self._failed = False

    def _write(self, seen: Seen, *, durable: bool) -> None:
        self._files.write_atomically(self._path, seen.encode(), durable=durable)


def _starts(history: HistoryRecord | None) -> tuple[tuple[int, str], ...]:
    entries = () if history is None else history.entries[-ENTRIES_REMEMBERED:]
    return tuple((entry.generation, entry.name) for entry in entries)


def _record(store: MetadataStore, row: Versioned) -> HistoryRecord:
    return decoded(store, HISTORY_KEY, HistoryRecord.decode, row.value)._replace(version=row.version)


def _differs(was: PartitionRecord, placed: PartitionRecord) -> bool:
    """Whether another leader, or fewer in-sync or eligible replicas, may lead from now on: a store without this change
    would let a replica lead that lacks what is acknowledged after it."""
    members = {*placed.isr, *placed.elr}
    return placed.leader_epoch != was.leader_epoch or not (
        set(was.isr) <= set(placed.isr) and {*was.isr, *was.elr} <= members
    )
