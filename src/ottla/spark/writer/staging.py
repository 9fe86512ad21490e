"""Writes exactly once: batches wait in files, and a manifest numbers them before any is sent.

Alternatively, each micro-batch is a transaction. It needs no manifest, because the records of an uncommitted
transaction do not count. `publishing.py` and `transaction.py` send the batches.

    owner.json                      the query that the directory belongs to, and whether it writes transactions
    batches/000000000012-3-<id>     staged by a task of micro-batch 12: whole record batches, one after another
    manifests/000000000012.json     content of micro-batch 12: files, and for each partition producer id, epoch, first
                                    sequence, where its log ended before, and where its batches lie
    done.json                       the last micro-batch that is in the logs, and every partition's next sequence
    lock                            held while a commit runs

Invariants:

- A manifest appears whole or not at all, is durable, and its content never changes; no batch is sent before. There is
  one exception: if a broker lost records that it had acknowledged, the rest of a partition gets new numbers. The
  manifest is replaced before these are used.
- An existing manifest is finished before any other work, whichever process wrote it. A micro-batch that is run again,
  with other rows or in another order, adds nothing to it.
- done.json is replaced only when every batch of the manifest was acknowledged, or the transaction committed; files are
  removed after that. If a transaction is newer than done.json, the cluster's state decides (`transaction.py`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import mmap
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ottla.client import TopicPartition
from ottla.client.client import LATEST
from ottla.protocol.records import batch as b
from ottla.spark.platform.durable import sync_folder, write_json
from ottla.spark.writer.publishing import Batch, PartitionQueue, Publisher
from ottla.spark.writer.transaction import Transactions

NOTHING_DONE = -1
_WITHOUT_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS}


class StagingRefusedError(Exception):
    """A staging directory that cannot be used as it is: one sentence that names it."""


class Piece(NamedTuple):
    """One staged batch: which file (of its manifest, or the only one), where in it, how large, how many records."""

    file: int
    position: int
    size: int
    records: int


@dataclass(frozen=True, slots=True)
class StagedFile:
    """Files staged by one task; sent to the driver. `pieces`: (topic, partition, position, bytes, records) in order."""

    name: str
    pieces: tuple[tuple[str, int, int, int, int], ...]


@dataclass(slots=True)
class ManifestPartition:
    """One partition's part of a manifest."""

    topic: str
    partition: int
    producer_id: int
    epoch: int
    base_sequence: int
    start_offset: int
    pieces: list[Piece] = field(default_factory=list)


@dataclass(slots=True)
class Manifest:
    """The content of a micro-batch: its files, and their batches by partition."""

    batch_id: int
    files: list[str]
    shares: list[ManifestPartition]


@dataclass(slots=True)
class Done:
    """The last micro-batch that is in the topics. `numbers`: "topic-partition" -> (producer id, epoch, next
    sequence)."""

    batch_id: int = NOTHING_DONE
    producer_id: int = b.NO_PRODUCER_ID
    epoch: int = b.NO_PRODUCER_EPOCH
    numbers: dict[str, tuple[int, int, int]] = field(default_factory=dict)


class Staging:
    """One query's directory. Methods raise StagingRefusedError, PublishFailedError and OSError."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._root = Path(directory)
        self._batches = self._root / "batches"
        self._manifests = self._root / "manifests"
        self._done_path = self._root / "done.json"
        self._owner_path = self._root / "owner.json"

    # ---- executors -------------------------------------------------------------------------------------------------

    def stage(self, batch_id: int, task: int, encoded: Iterable[tuple[str, int, int, Any]]) -> StagedFile | None:
        """Write batches (topic, partition, records, content) to a file of this attempt alone, durably. None of none."""
        name = f"{batch_id:012d}-{task}-{uuid.uuid4().hex}"
        pieces: list[tuple[str, int, int, int, int]] = []
        self._batches.mkdir(parents=True, exist_ok=True)
        path, position = self._batches / name, 0
        with path.open("xb", buffering=0) as file:
            for topic, partition, records, content in encoded:
                write_whole(file.fileno(), content)
                pieces.append((topic, partition, position, len(content), records))
                position += len(content)
            if pieces:
                os.fsync(file.fileno())
        if not pieces:
            path.unlink()
            return None
        sync_folder(self._batches)
        return StagedFile(name, tuple(pieces))

    # ---- the driver ------------------------------------------------------------------------------------------------

    def commit(
        self,
        batch_id: int,
        owner: str,
        staged: Sequence[StagedFile],
        publisher: Publisher,
        transactions: Transactions | None = None,
    ) -> int:
        """Add micro-batch `batch_id` of query `owner` to the topics, once. Return the number of records that this call
        sent."""
        with self._locked():
            self._own(owner, transactions is not None)
            done, added = self._read_done(), 0
            for manifest in self._unfinished(done):
                added += self._finish(manifest, done, publisher, resumed=True)
            if batch_id > done.batch_id and staged and transactions is not None:
                added += self._commit_transaction(batch_id, staged, done, transactions)
            elif batch_id > done.batch_id and staged:
                manifest = self._draft(batch_id, staged, done, publisher)
                write_json(self._manifest_path(batch_id), asdict(manifest))
                added += self._finish(manifest, done, publisher, resumed=False)
            self._sweep(max(done.batch_id, batch_id))
            return added

    def abort(self, batch_id: int, staged: Sequence[StagedFile]) -> None:
        """Remove what was staged for a micro-batch, unless its manifest exists: then it will be finished."""
        with self._locked():
            if not self._manifest_path(batch_id).exists():
                for file in staged:
                    remove_file(self._batches / file.name)

    def remove(self) -> None:
        """The directory, with all that is in it."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def _own(self, owner: str, transactional: bool) -> None:
        found = read_json(self._owner_path)
        if found is not None and found["query"] != owner:
            raise StagingRefusedError(
                f"The staging location {self.directory} belongs to another query ({found['query']}; this is {owner}). "
                "Every query needs one of its own: give option 'stagingLocation' another directory. If the other query "
                "is gone for good, its directory may be removed."
            )
        was = found is not None and found.get("transactional", False)
        if was and not transactional:
            raise StagingRefusedError(
                f"The query of the staging location {self.directory} has written transactions, and its last one may be "
                "in the topics without a trace here: give option 'transactional' as before."
            )
        if found is None or was != transactional:
            write_json(self._owner_path, {"query": owner, "transactional": transactional})

    def _commit_transaction(
        self, batch_id: int, staged: Sequence[StagedFile], done: Done, transactions: Transactions
    ) -> int:
        """Send a micro-batch as one transaction, unless the cluster has it already. How many records were sent."""
        records = 0
        if transactions.begin() < batch_id:
            shares = shares_of(staged, lambda place: (transactions.producer_id, transactions.epoch, 0))
            with contextlib.ExitStack() as files:
                views = [files.enter_context(self._opened(file.name)) for file in staged]
                queues = [queue_of(share, views) for share in shares.values()]
                records = sum(batch.records for queue in queues for batch in queue.waiting)
                transactions.write(batch_id, queues)
        done.batch_id = batch_id
        write_json(self._done_path, asdict(done))
        return records

    def _draft(self, batch_id: int, staged: Sequence[StagedFile], done: Done, publisher: Publisher) -> Manifest:
        """Give every batch its place and its number."""
        if done.producer_id < 0:
            done.producer_id, done.epoch = publisher.new_producer()
        new = (done.producer_id, done.epoch, 0)
        shares = shares_of(staged, lambda place: done.numbers.get(f"{place[0]}-{place[1]}", new))
        for topic in dict.fromkeys(topic for topic, _ in shares):
            partitions = [partition for name, partition in shares if name == topic]
            ends = publisher.ask(lambda client, t=topic, p=partitions: client.list_offsets(t, p, LATEST))
            for partition, end in ends.items():
                shares[topic, partition].start_offset = end
        return Manifest(batch_id, [file.name for file in staged], list(shares.values()))

    def _finish(self, manifest: Manifest, done: Done, publisher: Publisher, *, resumed: bool) -> int:
        """Send the batches that are not in the logs yet, and store that they are. Return the number of records sent."""
        with contextlib.ExitStack() as files:
            views = [files.enter_context(self._opened(name)) for name in manifest.files]
            queues = [queue_of(share, views) for share in manifest.shares]
            by_place = {queue.place: share for queue, share in zip(queues, manifest.shares, strict=True)}

            def renumbered(queue: PartitionQueue) -> None:
                share = by_place[queue.place]
                share.producer_id, share.epoch, share.base_sequence = queue.producer_id, queue.epoch, 0
                share.pieces = share.pieces[len(share.pieces) - len(queue.waiting) :]
                write_json(self._manifest_path(manifest.batch_id), asdict(manifest))

            publisher.renumbered = renumbered
            if resumed:
                publisher.recover(queues)
            records = sum(batch.records for queue in queues for batch in queue.waiting)
            publisher.send(queues)
        done.batch_id = manifest.batch_id
        done.numbers.update({queue.place: (queue.producer_id, queue.epoch, queue.next_sequence) for queue in queues})
        write_json(self._done_path, asdict(done))
        return records

    # ---- files -----------------------------------------------------------------------------------------------------

    def _manifest_path(self, batch_id: int) -> Path:
        return self._manifests / f"{batch_id:012d}.json"

    def _read_done(self) -> Done:
        found = read_json(self._done_path)
        if found is None:
            return Done()
        numbers = {place: (row[0], row[1], row[2]) for place, row in found["numbers"].items()}
        return Done(found["batch_id"], found["producer_id"], found["epoch"], numbers)

    def _unfinished(self, done: Done) -> list[Manifest]:
        """Return manifests newer than the last finished one; at most one, unless files were added by hand."""
        found: list[Manifest] = []
        for name in names_in(self._manifests):
            if re.fullmatch(r"\d{12}\.json", name) and int(name[:12]) > done.batch_id:
                row = read_json(self._manifests / name)
                assert row is not None
                shares = [
                    ManifestPartition(**{**each, "pieces": [Piece(*p) for p in each["pieces"]]})
                    for each in row["shares"]
                ]
                found.append(Manifest(row["batch_id"], row["files"], shares))
        return found

    @contextlib.contextmanager
    def _opened(self, name: str) -> Iterator[mmap.mmap]:
        try:
            with (self._batches / name).open("rb") as file:
                view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise StagingRefusedError(
                f"The staged file {name} in {self.directory} can't be read ({error}): its micro-batch can't be "
                "finished. Was something removed from the staging location?"
            ) from error
        with contextlib.closing(view):
            yield view

    def _sweep(self, batch_id: int) -> None:
        """Remove what was staged up to a micro-batch that is done, by whatever attempt, and its manifests."""
        for directory in (self._batches, self._manifests):
            for name in names_in(directory):
                if name[:12].isdigit() and int(name[:12]) <= batch_id:
                    remove_file(directory / name)
        for name in names_in(self._root):
            if name.endswith(".tmp"):  # of a commit that was killed while it wrote done.json
                remove_file(self._root / name)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One commit at a time: a killed driver's Python process may live on and still be sending.

        Where the file system has no locks, numbers alone keep two drivers apart."""
        self._manifests.mkdir(parents=True, exist_ok=True)
        with (self._root / "lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError as error:
                if error.errno not in _WITHOUT_LOCKS:
                    raise
            yield


def shares_of(
    staged: Sequence[StagedFile], numbers: Callable[[TopicPartition], tuple[int, int, int]]
) -> dict[TopicPartition, ManifestPartition]:
    """The batches by partition, in the order of the files. `numbers`: producer id, epoch and first sequence."""
    shares: dict[TopicPartition, ManifestPartition] = {}
    for index, file in enumerate(staged):
        for topic, partition, position, size, records in file.pieces:
            place = (topic, partition)
            if place not in shares:
                shares[place] = ManifestPartition(topic, partition, *numbers(place), start_offset=0)
            shares[place].pieces.append(Piece(index, position, size, records))
    return shares


def queue_of(share: ManifestPartition, views: Sequence[mmap.mmap]) -> PartitionQueue:
    """A share of a manifest as what the publisher sends."""
    queue = PartitionQueue(
        share.topic,
        share.partition,
        share.producer_id,
        share.epoch,
        share.base_sequence,
        share.start_offset,
        keeps=True,
    )
    for piece in share.pieces:
        queue.add(Batch(piece.records, piece.size, lambda piece=piece: loaded(share, piece, views[piece.file])))
    return queue


def loaded(share: ManifestPartition, piece: Piece, view: mmap.mmap) -> bytearray:
    """Return a copy of a staged batch. Its CRC is checked here, because sending computes a new one. Raises
    StagingRefusedError."""
    whole = bytearray(view[piece.position : piece.position + piece.size])
    if len(whole) != piece.size or not is_whole(whole):
        raise StagingRefusedError(f"A staged batch for {share.topic}-{share.partition} is damaged.")
    return whole


def is_whole(whole: bytearray) -> bool:
    header = b.peek(whole)
    return header.size_in_bytes == len(whole) and b.has_valid_crc(whole, 0, header)


def read_json(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise StagingRefusedError(f"The file {path} is damaged: {error}.") from error


def write_whole(descriptor: int, content: Any) -> None:
    with memoryview(content) as view:
        at = 0
        while at < len(view):
            at += os.write(descriptor, view[at:])


def names_in(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except FileNotFoundError:
        return []


def remove_file(path: Path) -> None:
    path.unlink(missing_ok=True)
