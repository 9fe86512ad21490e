"""Runs the loop of the shipper: reads files, sends records, receives acknowledgements and saves progress.

Invariants: a file's mark is on the disk before its first record is sent. Only acknowledged bytes are saved as such.
Unacknowledged records are bounded by `OUTSTANDING_BYTES_MAX` and `OUTSTANDING_MAX`; at the bound the loop reads
nothing.
"""

from __future__ import annotations

import os
import secrets
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from ottla.ship import scan, topic
from ottla.ship.catalog import Catalog, SeenFile, fits, named_after
from ottla.ship.failures import ProducerLostError, ShipFailedError
from ottla.ship.follow import HEAD_SIZE, Bounds, Follower, Look, Mark, Stage, Verdict, advance
from ottla.ship.lines import Record
from ottla.ship.rules import Rule
from ottla.ship.state import Saved, StateFile
from ottla.ship.topic import Say, Stopped, Topic

CHUNK = 256 * 1024
OUTSTANDING_BYTES_MAX = 32 * 1024 * 1024
OUTSTANDING_MAX = 100_000
SCAN_MS = 200
SCAN_SHARE = 20
"""A slow scan runs less often, so that scans take at most about a twentieth of the time."""
SAVE_MS = 1_000
IDLE_S = 0.1
COPY_WAIT_MS = 10_000
STALL_MS = 5_000
STOP_MS = 30_000
LOST_MAX = 5


@dataclass(frozen=True, slots=True)
class Shipping:
    """The options of a run."""

    patterns: Sequence[str]
    topic: str
    settings: Mapping[str, Any]
    """librdkafka's properties."""
    state: Path
    host: str
    service: str | None = None
    """None: derived from the file's name."""
    once: bool = False
    rule: Callable[[], Rule | None] = field(default=lambda: None)
    bounds: Bounds = field(default_factory=Bounds)


@dataclass(slots=True)
class Totals:
    """The result of a run. `records`, `lines` and `bytes` count what was acknowledged during it."""

    records: int = 0
    lines: int = 0
    bytes: int = 0
    files: int = 0
    already_there: int = 0
    """Records that an earlier run sent but could not save as acknowledged; they are not sent again."""
    unacknowledged: int = 0


def ship(shipping: Shipping, *, say: Say, stopped: Stopped, totals: Totals | None = None) -> Totals:
    """Ship until `stopped`, or with `once` until everything that exists now is acknowledged. Counts in `totals`, and
    returns them.

    Raises ShipFailedError. Waits indefinitely for the broker, and reports that it waits.
    """
    totals = Totals() if totals is None else totals
    state = StateFile(shipping.state, shipping.topic)
    lost = 0
    try:
        while True:
            before = totals.records
            try:
                run(shipping, state, totals, say, stopped)
                return totals
            except ProducerLostError as error:
                lost = lost + 1 if totals.records == before else 0
                if lost > LOST_MAX:
                    raise ShipFailedError(f"The producer failed {lost} times in a row: {error}.") from None
                say(f"The producer failed ({error}); continuing with a new one after the last acknowledged record.")
                time.sleep(min(lost, 5))
    finally:
        state.close()


def run(shipping: Shipping, state: StateFile, totals: Totals, say: Say, stopped: Stopped) -> None:
    """Ship with one producer, until `stopped` or the producer fails."""
    opened = Topic(shipping.topic, shipping.settings, say=say, stopped=stopped)
    if not opened.partitions:
        return
    loop = Loop(shipping, state, opened, totals, say)
    try:
        loop.begin()
        while not stopped() and not loop.through():
            loop.turn()
        loop.end()
    finally:
        loop.close()


class Loop:
    """Followers, their file descriptors, and unacknowledged records."""

    def __init__(self, shipping: Shipping, state: StateFile, opened: Topic, totals: Totals, say: Say) -> None:
        self._shipping = shipping
        self._state = state
        self._topic = opened
        self._totals = totals
        self._say = say
        self._catalog = Catalog((), copy_wait_ms=0 if shipping.once else COPY_WAIT_MS)
        self._open: dict[str, int] = {}
        self._headers: dict[str, topic.Headers] = {}
        self._keys: dict[str, bytes] = {}
        self._until: dict[str, int] = {}
        self._islands: dict[str, tuple[tuple[int, int], ...]] = {}
        self._first_tails: dict[int, int] = {}
        self._outstanding = self._outstanding_bytes = 0
        self._changed = self._progressed = False
        self._save_at = self._scan_at = 0
        self._progress_ms = now_ms()
        self._stalled = self._short = False

    # ---- --- start and end -----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Load the saved state, check which of its records the topic holds already, and find the files. Raises
        ShipFailedError."""
        saved = self._state.load()
        marks: Sequence[Mark] = ()
        if saved is not None:
            if self._topic.cluster and saved.cluster not in {"", self._topic.cluster}:
                raise ShipFailedError(
                    f"The state in {self._shipping.state} is of cluster {saved.cluster}, not {self._topic.cluster}:"
                    " give another --state."
                )
            self._topic.tails.update(saved.tails)
            marks = saved.marks if saved.clean else self._advanced(saved)
        self._catalog = Catalog(marks, copy_wait_ms=0 if self._shipping.once else COPY_WAIT_MS)
        self._look_around(now_ms(), first=True)
        self._save(clean=False)
        if not self._catalog.followers:
            self._say(f"No file exists yet: {', '.join(self._shipping.patterns)}.")
        elif not self._shipping.once:
            self._say(
                f"Following files ({len(self._catalog.followers)} now) to {self._shipping.topic}; Ctrl-C ends it."
            )

    def _advanced(self, saved: Saved) -> list[Mark]:
        """The marks of a run that did not end cleanly, advanced over their records in the topic."""
        sent: dict[str, list[tuple[int, int, bool]]] = {}
        used = {mark.partition for mark in saved.marks}
        tails = {partition: first for partition, first in saved.tails.items() if partition in used}
        for each in self._topic.sent(tails, [mark.id for mark in saved.marks]):
            sent.setdefault(each.file_id, []).append((each.start, each.end, each.more))
        marks: list[Mark] = []
        for mark in saved.marks:
            moved, islands, joined = advance(mark, sent.get(mark.id, ()))
            if islands:
                self._islands[mark.id] = islands
                self._first_tails[mark.partition] = saved.tails[mark.partition]
            self._totals.already_there += joined + len(islands)
            marks.append(moved)
        return marks

    def through(self) -> bool:
        """Whether, with `once`, everything is read and acknowledged."""
        return self._shipping.once and not self._open

    def end(self) -> None:
        """Send the pending records except a last line without a line end, wait for the acknowledgements, and save."""
        for follower in list(self._catalog.followers.values()):
            if follower.stage is not Stage.ENDED:
                self._send(follower, follower.finish(partial=False))
        deadline = now_ms() + STOP_MS
        while self._outstanding and now_ms() < deadline:
            self._topic.poll(IDLE_S)
            self._tell_stall(now_ms())
        self._totals.unacknowledged += self._outstanding
        self._save(clean=not self._outstanding and not self._islands)

    def close(self) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()
        self._topic.close()

    # ---- --- one turn ----------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Read from every file once; sleep if none had new bytes."""
        now = now_ms()
        if now >= self._scan_at and not self._shipping.once:
            self._look_around(now)
        busy = False
        for follower in list(self._catalog.followers.values()):
            if self._full():
                break
            busy |= self._work(follower, now)
        self._topic.poll(0 if busy and not self._full() else IDLE_S)
        self._close_ended()
        now = now_ms()
        if self._changed and now >= self._save_at:
            self._save(clean=False)
        self._tell_stall(now)

    def _full(self) -> bool:
        return self._outstanding_bytes >= OUTSTANDING_BYTES_MAX or self._outstanding >= OUTSTANDING_MAX

    def _work(self, follower: Follower, now: int) -> bool:
        """Read a chunk of a file. Returns whether there may be more."""
        if follower.stage is Stage.ENDED:
            return False
        descriptor = self._open[follower.id]
        found = os.fstat(descriptor)
        until = self._until.get(follower.id)
        if until is not None and follower.position >= until:
            self._send(follower, follower.finish(partial=True))
            return True
        if follower.quiet(found.st_size, found.st_mtime_ns):
            self._send(follower, follower.finish(partial=True) if follower.over(now) else follower.expire(now))
            return False
        size = CHUNK if until is None else min(CHUNK, until - follower.position)
        try:
            read = os.pread(descriptor, follower.span(size), follower.position)
            look = self._look(descriptor, follower)
        except OSError as error:
            self._say(f"{follower.place} can't be read: {error.strerror}.")
            self._send(follower, follower.finish(partial=True))
            return True
        if follower.judge(look) is Verdict.TRUNCATED:
            self._truncated(follower, now)
            return True
        self._send(follower, follower.take(now, read) or follower.expire(now))
        return bool(read)

    def _look(self, descriptor: int, follower: Follower) -> Look:
        """Stat and re-read a file after reading it. The size comes first: later writes are seen the next time."""
        found = os.fstat(descriptor)
        before = follower.before_size
        return Look(
            found.st_size,
            found.st_mtime_ns,
            os.pread(descriptor, len(follower.head), 0) if follower.head else b"",
            os.pread(descriptor, before, follower.position - before) if before else b"",
        )

    def _send(self, follower: Follower, records: Sequence[Record]) -> None:
        headers, key = self._headers[follower.id], self._keys[follower.id]
        for record in records:
            own = [*headers, (topic.START, b"%d" % record.start), (topic.END, b"%d" % record.end)]
            if record.whole is not None:
                own.append((topic.WHOLE, b"%d" % record.whole))
                if record.more:
                    own.append((topic.MORE, b"1"))
            self._outstanding += 1
            self._outstanding_bytes += record.end - record.start
            done = partial(self._acknowledged, follower, record)
            while not self._topic.send(follower.partition, key, record.value, own, done):
                self._topic.poll(IDLE_S)
                self._tell_stall(now_ms())

    def _acknowledged(self, follower: Follower, record: Record) -> None:
        follower.acknowledged(record)
        size = record.end - record.start
        self._outstanding -= 1
        self._outstanding_bytes -= size
        self._totals.records += 1
        self._totals.lines += record.lines
        self._totals.bytes += size
        self._changed = self._progressed = True

    # ---- --- files -------------------------------------------------------------------------------------------------

    def _look_around(self, now: int, *, first: bool = False) -> None:
        seen_files = scan.seen_files(self._shipping.patterns)
        self._scan_at = now + max(SCAN_MS, SCAN_SHARE * (now_ms() - now))
        found = self._catalog.scanned(now, seen_files, scan.peek)
        for follower in found.left:
            follower.leave(now)
        new = list(found.new)
        for mark, seen_file in found.known:
            if not self._resume(mark, seen_file, now):
                self._take_over(mark, now)
                new.append(seen_file)
        if first:
            self._find_renamed(seen_files, now)
        begun = [self._begin(seen_file, now) for seen_file in new]
        if any(begun):
            self._save(clean=False)

    def _find_renamed(self, seen_files: Sequence[SeenFile], now: int) -> None:
        """Find files that were renamed while the shipper was stopped, and read the rest of them under their new
        names."""
        seen = {each.key for each in seen_files}
        for key, mark in list(self._catalog.marks.items()):
            there = scan.file_at(mark.place)
            if key in seen or (there is not None and there.key == key):
                continue
            renamed = next((each for each in scan.beside(mark.place) if each.key == key), None)
            if renamed is None or not self._resume(mark, renamed, now, left=True):
                self._catalog.marks.pop(key, None)

    def _resume(self, mark: Mark, seen_file: SeenFile, now: int, *, left: bool = False) -> bool:
        """Continue a file at its mark; returns False if it is another file now."""
        if fits(mark, seen_file.path, seen_file.size, scan.peek) is None:
            return False
        moved = replace(mark, place=seen_file.path, device=seen_file.device, inode=seen_file.inode)
        head = scan.peek(seen_file.path, 0, min(HEAD_SIZE, mark.offset))
        follower = self._follower(moved, now, head)
        if self._opened(follower, seen_file):
            self._catalog.marks.pop((mark.device, mark.inode), None)
            self._catalog.follow(follower)
            if left:
                follower.leave(now)
        return True

    def _take_over(self, mark: Mark, now: int) -> None:
        """A file was truncated or replaced while the shipper was stopped: read the rest of it from a copy, if there is
        one."""
        self._catalog.marks.pop((mark.device, mark.inode), None)
        for each in scan.beside(mark.place):
            if mark.offset and named_after(each.path, mark.place) and self._resume(mark, each, now, left=True):
                return

    def _begin(self, seen_file: SeenFile, now: int) -> bool:
        """Follow a file from its beginning."""
        if seen_file.key in self._catalog.followers:
            return False
        key = f"{self._shipping.host}:{seen_file.path}".encode(errors="surrogateescape")
        partition = zlib.crc32(key) % self._topic.partitions
        mark = Mark(secrets.token_hex(8), seen_file.path, seen_file.path, seen_file.device, seen_file.inode, partition)
        follower = self._follower(mark, now, b"")
        if not self._opened(follower, seen_file):
            return False
        if partition not in self._topic.tails:
            self._topic.tails[partition] = self._topic.end(partition)
        self._catalog.follow(follower)
        self._totals.files += 1
        return True

    def _follower(self, mark: Mark, now: int, head: bytes) -> Follower:
        islands = self._islands.get(mark.id, ())
        return Follower(mark, self._shipping.rule(), self._shipping.bounds, head=head, islands=islands, now=now)

    def _opened(self, follower: Follower, seen_file: SeenFile) -> bool:
        try:
            descriptor = os.open(seen_file.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            if not self._short:
                self._say(f"{seen_file.path} can't be opened: {error.strerror}; trying again.")
            self._short = True
            return False
        found = os.fstat(descriptor)
        if (found.st_dev, found.st_ino) != seen_file.key:
            os.close(descriptor)
            return False
        self._open[follower.id] = descriptor
        if self._shipping.once:
            self._until[follower.id] = found.st_size
        path = follower.path.encode(errors="surrogateescape")
        self._keys[follower.id] = self._shipping.host.encode() + b":" + path
        self._headers[follower.id] = [
            (topic.SERVICE, (self._shipping.service or scan.named_service(follower.path)).encode(errors="replace")),
            (topic.FILE, path),
            (topic.HOST, self._shipping.host.encode()),
            (topic.FILE_ID, follower.id.encode()),
        ]
        return True

    def _truncated(self, follower: Follower, now: int) -> None:
        """The file was truncated: read the rest from a copy, if there is one, and start again at the beginning of this
        file."""
        place, key = follower.place, follower.key
        copied_rest = self._catalog.copied_rest(follower, scan.beside(place), scan.peek)
        os.close(self._open.pop(follower.id))
        self._catalog.give_up(follower, remember=False)
        if copied_rest is not None:
            follower.moved(copied_rest.path, copied_rest.key)
        if copied_rest is None or not self._opened(follower, copied_rest):
            self._send(follower, follower.finish(partial=True))
            self._catalog.followers[nowhere(follower)] = follower
        else:
            self._catalog.follow(follower)
            follower.leave(now)
        again = scan.file_at(place)
        if again is not None and again.key == key:
            self._begin(again, now)
        self._save(clean=False)

    def _close_ended(self) -> None:
        """Close files that are read to their end and acknowledged."""
        for key, follower in list(self._catalog.followers.items()):
            if follower.stage is not Stage.ENDED or not follower.settled:
                continue
            descriptor = self._open.pop(follower.id, None)
            del self._catalog.followers[key]
            if descriptor is not None:
                if os.fstat(descriptor).st_nlink:
                    self._catalog.marks[follower.key] = follower.mark()
                os.close(descriptor)
            self._islands.pop(follower.id, None)
            self._changed = True

    # ---- --- state and reports -------------------------------------------------------------------------------------

    def _save(self, *, clean: bool) -> None:
        followers = list(self._catalog.followers.values())
        tails = dict(self._topic.tails)
        scattered = {each.partition for each in followers if each.scattered}
        tails.update({each: self._first_tails[each] for each in scattered & self._first_tails.keys()})
        marks = [*self._catalog.marks.values(), *(each.mark() for each in followers)]
        self._state.save(Saved(self._topic.cluster, self._topic.name, clean, tails, tuple(marks)))
        self._changed = False
        self._save_at = now_ms() + SAVE_MS

    def _tell_stall(self, now: int) -> None:
        if self._progressed:
            self._progressed = False
            self._progress_ms = now
        waiting = self._outstanding > 0
        if waiting and not self._stalled and now - self._progress_ms > STALL_MS:
            self._stalled = True
            self._say(f"The broker does not answer: {self._outstanding} records wait, and no more is read than fits.")
        elif self._stalled and (not waiting or now - self._progress_ms < STALL_MS):
            self._stalled = False
            self._say("The broker answers again.")
        if not waiting:
            self._progress_ms = now


def nowhere(follower: Follower) -> tuple[int, int]:
    """A catalog key for a file that no longer exists: no device has a negative number."""
    return -1, int(follower.id, 16)


def now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
