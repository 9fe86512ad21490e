"""`ottla log`: shows the contents of a file of a partition's directory, Ottla's or Kafka's, and verifies them.

It only reads and never opens a log, so a node may be running on it.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.output import CommandError, UsageError, json_text, say_lines
from ottla.cli.printing import TIMESTAMP_TYPES, Shape, plain
from ottla.escaping import visible

if TYPE_CHECKING:
    from ottla.protocol.records import BatchHeader, Record

app = typer.Typer(help="Show and verify the files of a log.", no_args_is_help=True)

COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
MARKERS = {0: "ABORT", 1: "COMMIT"}

Entry = dict[str, Any]


@app.callback()
def log() -> None:
    """Show and verify the files of a log."""


@app.command(epilog="Example: ottla log dump ottla-data/clicks-0/00000000000000000000.log --records --format json")
def dump(
    file: Annotated[
        Path, typer.Argument(help="File to show: .log, .index, .timeindex, .txnindex, .snapshot or a checkpoint.")
    ],
    records: Annotated[
        bool, typer.Option("--records", "-r", help="Show the records of a segment too, not only its batches.")
    ] = False,
    format: Annotated[
        Shape, typer.Option("--format", help="Format of the output: text, or one JSON object a line (default text).")
    ] = Shape.TEXT,
) -> None:
    """Show the batches of a segment, or the entries of an index, a snapshot or a checkpoint."""
    readers = {
        ".log": lambda: segment(file, records),
        ".index": lambda: offset_index(file),
        ".timeindex": lambda: time_index(file),
        ".txnindex": lambda: txn_index(file),
        ".snapshot": lambda: snapshot(file),
        "": lambda: checkpoint(file),
    }
    if file.suffix not in readers:
        raise CommandError(f"{file} is no file of a log: expected .log, .index, .timeindex, .txnindex or .snapshot.")
    try:
        for entry in readers[file.suffix]():
            say_lines(json_text(entry) if format is Shape.JSON else line(entry))
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.filename is None:  # not an error of the file: the output cannot be written
            raise
        raise CommandError(f"{file} cannot be read: {error.strerror}.") from None


@app.command(epilog="Example: ottla log verify ottla-data --topic clicks")
def verify(
    directory: Annotated[Path, typer.Argument(help="The data directory of a node, or a copy of it.")],
    topic: Annotated[str | None, typer.Option("--topic", help="Verify this topic (default: all topics).")] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", help="Verify this partition of the topic (default: all).")
    ] = None,
    format: Annotated[
        Shape, typer.Option("--format", help="Format of the output: text, or one JSON object a line (default text).")
    ] = Shape.TEXT,
) -> None:
    """Check every batch of the segments in a data directory: checksum, offsets, leader epoch, index.

    Prints a line for each damaged place, at most one per segment. Exit code 1 if there is one.
    """
    from ottla.cli import verifying

    if partition is not None and topic is None:
        raise UsageError("--partition needs --topic.")
    try:
        places = [
            place
            for place in verifying.partitions(directory)
            if topic in (None, place[0]) and partition in (None, place[1])
        ]
        if not places:
            raise CommandError(f"{directory} has no such partition.")
        damaged, size = 0, 0
        for name, index in places:
            for found in verifying.damages(directory, name, index):
                if isinstance(found, int):
                    size += found
                    continue
                damaged += 1
                entry = {"topic": name, "partition": index, **found._asdict()}
                say_lines(json_text(entry) if format is Shape.JSON else visible(f"{name}-{index}: {found}"))
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.filename is None:
            raise
        raise CommandError(f"{error.filename} cannot be read: {error.strerror}.") from None
    counted = f"{len(places)} partition{'s' * (len(places) != 1)}, {size} bytes"
    if damaged:
        raise CommandError(f"{damaged} damaged place{'s' * (damaged != 1)} in {counted}.")
    if format is Shape.TEXT:
        say_lines(f"No damage in {counted}.")


def line(entry: Entry) -> str:
    """An entry as DumpLogSegments prints one: `name: value` pairs in a row; records are indented under their batch."""
    parts = [f"{name}: {shown(value)}" for name, value in entry.items() if name != "records"]
    under = ["| " + line(record) for record in entry.get("records", ())]
    return "\n".join((visible(" ".join(parts)), *under))


def shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def base_offset(file: Path) -> int:
    """The offset in a segment file's name."""
    if not file.stem.isdigit():
        raise CommandError(f"{file.name} does not begin with an offset, as the files of a log do.")
    return int(file.stem)


def segment(file: Path, records: bool) -> Iterator[Entry]:
    """One entry per batch; invalid bytes end it, with a sentence about their position."""
    from ottla.protocol.records import (
        CorruptRecordsError,
        UnsupportedMagicError,
        decode_records,
        has_valid_crc,
        iter_batches,
    )
    from ottla.protocol.records.compression import READER_BYTES_MAX

    topic = file.absolute().parent.name.rpartition("-")[0]
    end = 0
    with file.open("rb") as opened:
        size = file.stat().st_size
        if size == 0:
            return
        with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as view:
            try:
                for header, position in iter_batches(view):
                    end = position + header.size_in_bytes
                    valid = has_valid_crc(view, position, header)
                    entry = batch_entry(header, position, valid)
                    if records:
                        found = decode_records(view, position, max_bytes=READER_BYTES_MAX) if valid else []
                        entry["records"] = [record_entry(each, header, topic) for each in found]
                    yield entry
            except (CorruptRecordsError, UnsupportedMagicError) as error:
                raise CommandError(f"{file}, position {end}: {error}.") from None
    if end < size:
        raise CommandError(f"{file}, position {end}: {size - end} bytes are no whole batch.")


def batch_entry(header: BatchHeader, position: int, valid: bool) -> Entry:
    compression = header.compression
    return {
        "baseOffset": header.base_offset,
        "lastOffset": header.last_offset,
        "count": header.record_count,
        "baseSequence": header.base_sequence,
        "lastSequence": header.last_sequence,
        "producerId": header.producer_id,
        "producerEpoch": header.producer_epoch,
        "partitionLeaderEpoch": header.partition_leader_epoch,
        "isTransactional": header.is_transactional,
        "isControl": header.is_control,
        "deleteHorizonMs": header.delete_horizon_ms,
        "position": position,
        TIMESTAMP_TYPES[header.timestamp_type + 1]: header.max_timestamp,
        "size": header.size_in_bytes,
        "magic": header.magic,
        "compresscodec": COMPRESSIONS[compression] if compression < len(COMPRESSIONS) else compression,
        "crc": header.crc,
        "isvalid": valid,
    }


def record_entry(record: Record, header: BatchHeader, topic: str) -> Entry:
    entry: Entry = {
        "offset": record.offset,
        TIMESTAMP_TYPES[header.timestamp_type + 1]: record.timestamp_ms,
        "headers": [[plain(name), plain(value)] for name, value in record.headers],
    }
    if header.is_control:
        return entry | control_entry(record)
    if topic.startswith("__"):
        internal = internal_entry(record, topic)
        if internal is not None:
            return entry | internal
    return entry | {"key": plain(record.key), "payload": plain(record.value)}


def control_entry(record: Record) -> Entry:
    from ottla.protocol.records.control import control_type, decode_marker

    marker = decode_marker(record)
    kind = control_type(record)
    if marker is None:
        return {"controlType": kind}
    return {"endTxnMarker": MARKERS[kind], "coordinatorEpoch": marker.coordinator_epoch}


def internal_entry(record: Record, topic: str) -> Entry | None:
    """A decoded coordinator record; None for an unknown type."""
    from ottla.protocol.coordinator_records import decode_record
    from ottla.protocol.errors import MalformedFrameError

    try:
        key, value = decode_record(topic, record.key or b"", record.value)
    except MalformedFrameError:
        return None
    return {"kind": type(key).__name__, "key": fields(key), "payload": fields(value)}


def fields(message: Any) -> Any:
    """A generated message as values that JSON can represent."""
    if isinstance(message, (bytes, bytearray, memoryview)):
        return plain(bytes(message))
    if isinstance(message, list):
        return [fields(each) for each in message]
    if hasattr(message, "__slots__"):
        return {name: fields(getattr(message, name)) for name in message.__slots__ if hasattr(message, name)}
    return message


def entries(file: Path, shape: Struct) -> Iterator[tuple[Any, ...]]:
    """The whole entries of an index file; an unfinished entry at the end is left out."""
    content = file.read_bytes()
    yield from shape.iter_unpack(content[: len(content) - len(content) % shape.size])


def offset_index(file: Path) -> Iterator[Entry]:
    from ottla.log.index.offsets import OFFSET_ENTRY

    base, last = base_offset(file), -1
    for relative, position in entries(file, OFFSET_ENTRY):
        if relative <= last or position == 0:
            return  # preallocated: zeros follow the last entry; the batch at position 0 has none
        last = relative
        yield {"offset": base + relative, "position": position}


def time_index(file: Path) -> Iterator[Entry]:
    from ottla.log.index.times import TIME_ENTRY

    base, last = base_offset(file), -1
    for timestamp, relative in entries(file, TIME_ENTRY):
        if timestamp < last or timestamp == 0:
            return
        last = timestamp
        yield {"timestamp": timestamp, "offset": base + relative}


def txn_index(file: Path) -> Iterator[Entry]:
    from ottla.log.index.transactions import TRANSACTION_ENTRY

    for version, producer_id, first, last, stable in entries(file, TRANSACTION_ENTRY):
        yield {
            "version": version,
            "producerId": producer_id,
            "firstOffset": first,
            "lastOffset": last,
            "lastStableOffset": stable,
        }


def snapshot(file: Path) -> Iterator[Entry]:
    from ottla.log.producers import SnapshotUnreadableError, decode_snapshot

    try:
        producers = decode_snapshot(file.read_bytes())
    except SnapshotUnreadableError as error:
        raise CommandError(f"{file} is no producer snapshot: {error}.") from None
    for each in producers:
        yield {
            "producerId": each.producer_id,
            "producerEpoch": each.epoch,
            "coordinatorEpoch": each.coordinator_epoch,
            "currentTxnFirstOffset": each.current_txn_first_offset,
            "lastTimestamp": each.last_timestamp,
            "firstSequence": each.batches[0].first_sequence if each.batches else -1,
            "lastSequence": each.last_sequence,
            "lastOffset": each.last_data_offset,
        }


def checkpoint(file: Path) -> Iterator[Entry]:
    """A checkpoint is text: a version, a count, then one line per entry."""
    try:
        lines = file.read_text().splitlines()
    except UnicodeDecodeError:
        raise CommandError(f"{file} is no file of a log.") from None
    if len(lines) < 2 or not lines[0].isdigit() or not lines[1].isdigit():
        raise CommandError(f"{file} is no checkpoint: a version and a count stand first.")
    for number, each in enumerate(lines[2:], 3):
        cells = each.split()
        try:
            if "leader-epoch" in file.name:
                yield dict(zip(("epoch", "startOffset"), map(int, cells), strict=True))
            else:
                yield dict(zip(("topic", "partition", "offset"), (cells[0], *map(int, cells[1:])), strict=True))
        except (ValueError, IndexError):
            raise CommandError(f"{file}, line {number}: {each!r} is no entry of a checkpoint.") from None
