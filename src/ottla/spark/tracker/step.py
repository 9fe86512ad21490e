"""Steps one partition of the markers topic through a micro-batch: from state, markers and time to the messages to
redeliver and the new state.

The module is pure: no Spark, no broker, no clock. It selects the open messages that a batch concerns and computes the
next wake-up. `ottla.kmq.external_tracker`, the standalone tracker's own machine, decides the effect of the markers. It
gets only the messages that the batch names or that may be due.

**Time.** `now_ms` is the time of the batch, the same when the batch is repeated. A batch without markers of the
partition is at the end of the topic.

**After a start** no message is handed over before a marker as new as the start, or the end of the topic, was read. By
then, every end marker that existed when the query started is known (the original's issue 158).

Invariants: the ledger describes the content of every chunk; a message is in the chunk of its offset.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, Final, Protocol

import numpy as np

from ottla.kmq.config import KmqConfig
from ottla.kmq.deadlines import rounded
from ottla.kmq.events import EndReached, HandOver
from ottla.kmq.external_tracker import HandoverPartition
from ottla.kmq.machine import UNDERWAY_MS, Open
from ottla.spark.tracker.batches import Markers
from ottla.spark.tracker.chunks import CHUNK_BITS, Chunk, Ledger, decode_chunk, encode_chunk, member

HANDED_MAX: Final = 10_000
"""Due messages of a partition that one batch handles; the next batches handle the rest."""

_KEY: Final = Struct(">iq")
_KEYS: Final = np.dtype([("partition", ">i4"), ("offset", ">i8")])


class Chunks(Protocol):
    """The store of a partition's chunks."""

    def get(self, number: int) -> bytes | None: ...
    def put(self, number: int, octets: bytes) -> None: ...
    def drop(self, number: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Stepped:
    """Result of a step. `wake_ms`: when there is work without new markers; None for never."""

    due: list[HandOver]
    read: int
    malformed: int
    wake_ms: int | None


@dataclass(slots=True)
class Loaded:
    """Chunks that were read, and the messages taken out of them."""

    chunks: dict[int, Chunk] = field(default_factory=dict[int, Chunk])
    opened: dict[int, Open] = field(default_factory=dict[int, Open])
    asked: dict[int, int] = field(default_factory=dict[int, int])


def step(
    partition: int, config: KmqConfig, ledger: Ledger, store: Chunks, now_ms: int, run_ms: int, markers: Markers | None
) -> Stepped:
    """Process the markers of a batch, None if it has none; changes ledger and store. `run_ms`: when the query began."""
    if ledger.run_ms != run_ms:
        ledger.run_ms, ledger.replaying, ledger.replay_end = run_ms, True, -1
    if markers is not None and ledger.replaying and ledger.replay_end < 0:
        young = markers.timestamps_ms >= run_ms
        if young.any():
            ledger.replay_end = int(markers.offsets[young.argmax()])
    named = named_in(partition, markers)
    loaded = load(ledger, store, named, horizon_ms(config, ledger, now_ms, markers))
    machine = HandoverPartition(partition, config, HANDED_MAX)
    machine.resume(
        loaded.opened,
        loaded.asked,
        position=ledger.position if ledger.position >= 0 else None,
        latest_ms=ledger.latest_ms,
        read_at_ms=ledger.read_at_ms,
        at_end=ledger.at_end,
        replay_end=ledger.replay_end if ledger.replay_end >= 0 else None,
        replaying=ledger.replaying,
    )
    event = EndReached(max(ledger.position, 0)) if markers is None else markers.read()
    due = [effect for effect in machine.step(now_ms, event) if isinstance(effect, HandOver)]
    save(ledger, store, loaded, named, machine)
    ledger.latest_ms, ledger.at_end, ledger.replaying = machine.latest_ms, machine.at_end, machine.replaying
    ledger.position = -1 if machine.position is None else machine.position
    if markers is not None:
        ledger.read_at_ms = now_ms
    return Stepped(due, 0 if markers is None else len(markers), machine.malformed, wake_ms(config, ledger, now_ms))


def named_in(partition: int, markers: Markers | None) -> Any:
    """The messages that these markers are of, ordered, each once."""
    if markers is None:
        return np.zeros(0, np.int64)
    keys = np.frombuffer(b"".join(key for key in markers.keys if key is not None and len(key) == _KEY.size), _KEYS)
    return np.unique(keys["offset"][keys["partition"] == partition].astype(np.int64))


def horizon_ms(config: KmqConfig, ledger: Ledger, now_ms: int, markers: Markers | None) -> int | None:
    """The time that deadlines will be compared with; None where none will be."""
    if markers is None:
        silent = now_ms - ledger.read_at_ms >= config.use_now_after_ms
        return max(ledger.latest_ms, now_ms - UNDERWAY_MS) if silent else ledger.latest_ms
    end = int(markers.offsets[-1]) + 1
    if ledger.replaying and (ledger.replay_end < 0 or end < ledger.replay_end):
        return None
    return max(ledger.latest_ms, int(markers.timestamps_ms.max()))


def load(ledger: Ledger, store: Chunks, named: Any, horizon: int | None) -> Loaded:
    """Read the chunks of named messages and of due ones; remove these messages from them, of the due ones the first."""
    wanted = member(ledger.chunks, np.unique(named >> CHUNK_BITS))
    if horizon is not None:
        wanted |= ledger.dues <= horizon
    loaded = Loaded()
    dues: list[tuple[int, Any]] = []
    for number in ledger.chunks[wanted].tolist():
        octets = store.get(number)
        if octets is None:
            raise AssertionError(f"chunk {number} is in the ledger but does not exist")
        chunk = loaded.chunks[number] = decode_chunk(number, octets)
        chosen = member(chunk.offsets, named)
        take(loaded, chunk, chosen)
        if horizon is not None:
            late = ~chosen & (chunk.dues() <= horizon)
            if late.any():
                dues.append((number, late))
    for number, chosen in first_of(loaded.chunks, dues):
        take(loaded, loaded.chunks[number], chosen)
    return loaded


def take(loaded: Loaded, chunk: Chunk, chosen: Any) -> None:
    if chosen.any():
        opened, asked = chunk.rows(chosen)
        loaded.opened.update(opened)
        loaded.asked.update(asked)


def first_of(chunks: dict[int, Chunk], dues: list[tuple[int, Any]]) -> Iterable[tuple[int, Any]]:
    """Of all due messages, return the HANDED_MAX that have been due longest."""
    if sum(int(late.sum()) for _, late in dues) <= HANDED_MAX:
        return dues
    times = np.concatenate([chunks[number].dues()[late] for number, late in dues])
    latest = np.partition(times, HANDED_MAX - 1)[HANDED_MAX - 1]
    found: list[tuple[int, Any]] = []
    room = HANDED_MAX - int((times < latest).sum())
    for number, late in dues:
        all_dues = chunks[number].dues()
        equal = np.flatnonzero(late & (all_dues == latest))[: max(room, 0)]
        room -= len(equal)
        chosen = late & (all_dues < latest)
        chosen[equal] = True
        found.append((number, chosen))
    return found


def save(ledger: Ledger, store: Chunks, loaded: Loaded, named: Any, machine: HandoverPartition) -> None:
    """Store the changes to the messages that the machine had or got."""
    touched = np.union1d(named, np.fromiter(loaded.opened, np.int64, len(loaded.opened)))
    by_chunk: dict[int, dict[int, Open]] = {}
    for offset, entry in machine.opened.items():
        by_chunk.setdefault(offset >> CHUNK_BITS, {})[offset] = entry
    changed: dict[int, Chunk] = {}
    for number in loaded.chunks.keys() | by_chunk.keys():
        before, now = loaded.chunks.get(number, Chunk()), by_chunk.get(number, {})
        first, end = np.searchsorted(touched, (number << CHUNK_BITS, (number + 1) << CHUNK_BITS))
        gone = touched[first:end]
        if not now and not member(before.offsets, gone).any():
            continue
        asked = {offset: machine.asked[offset] for offset in now.keys() & machine.asked.keys()}
        chunk = changed[number] = before.replaced(gone, now, asked)
        if len(chunk):
            store.put(number, encode_chunk(chunk))
        else:
            store.drop(number)
    if changed:
        ledger.note(changed)


def wake_ms(config: KmqConfig, ledger: Ledger, now_ms: int) -> int | None:
    """Return the time of the next wake-up if no markers come."""
    if (due := ledger.first_due_ms) is None:
        return None
    if ledger.replaying or due <= ledger.latest_ms:
        return now_ms + 1
    return max(rounded(due) + UNDERWAY_MS, ledger.read_at_ms + config.use_now_after_ms, now_ms + 1)
