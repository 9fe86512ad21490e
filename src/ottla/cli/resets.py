"""Computes the target offsets of a reset, and commits them for the group.

It supports the targets of kafka-consumer-groups.sh --reset-offsets. Each becomes one offset per partition, limited to
the range of the log as in Kafka.

Source: ConsumerGroupCommand (KIP-122).
"""

from __future__ import annotations

import csv
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias, cast

import typer

from ottla.broker.config.durations import duration_ms
from ottla.cli import existing
from ottla.cli.connection import REQUEST_TIMEOUT_S, address, plain_errors, wait
from ottla.cli.output import CommandError, UsageError, counted, say
from ottla.cli.times import in_range, parse_time

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

Partition: TypeAlias = tuple[str, int]

OFFSET_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class End:
    """One end of the log: "earliest" or "latest"."""

    which: str


@dataclass(frozen=True, slots=True)
class Since:
    """The first record at or after this time; the log's end if there is none."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Shift:
    """The committed offset plus this number; 0 leaves it unchanged."""

    by: int


@dataclass(frozen=True, slots=True)
class Offset:
    """This offset in every partition."""

    offset: int


@dataclass(frozen=True, slots=True)
class Listed:
    """An individual offset for each partition."""

    offsets: Mapping[Partition, int]


Target: TypeAlias = End | Since | Shift | Offset | Listed


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """Options for the target; exactly one must be given."""

    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="Move to the first record.")] = False
    to_latest: Annotated[bool, typer.Option("--to-latest", help="Move to the end of the log.")] = False
    to_current: Annotated[bool, typer.Option("--to-current", help="Keep the current offset.")] = False
    to_datetime: Annotated[
        str | None,
        typer.Option("--to-datetime", metavar="TIME", help="Move to the first record at or after this time."),
    ] = None
    by_duration: Annotated[
        str | None,
        typer.Option(
            "--by-duration", metavar="PnDTnHnMnS", help="Move to the first record of this duration before now."
        ),
    ] = None
    to_offset: Annotated[int | None, typer.Option("--to-offset", metavar="N", help="Move to this offset.")] = None
    from_file: Annotated[
        Path | None,
        typer.Option(
            "--from-file", metavar="CSV", help="Move to the offsets in a file with lines topic,partition,offset."
        ),
    ] = None

    def target(self, shift: int | None = None) -> Target:
        """The one target of the options; raises CommandError if there is none, more than one, or an invalid one."""
        asked: list[Target] = []
        if self.to_earliest:
            asked.append(End("earliest"))
        if self.to_latest:
            asked.append(End("latest"))
        if self.to_current:
            asked.append(Shift(0))
        if self.to_datetime is not None:
            asked.append(Since(parse_time(self.to_datetime)))
        if self.by_duration is not None:
            asked.append(Since(max(0, int(time.time() * 1000) - parse_duration(self.by_duration))))
        if shift is not None:
            asked.append(Shift(shift))
        if self.to_offset is not None:
            asked.append(Offset(self.to_offset))
        if self.from_file is not None:
            asked.append(Listed(read_offsets(self.from_file)))
        if len(asked) != 1:
            raise UsageError("Say where to, once: --to-earliest, --to-latest, --to-offset N, --shift-by N, and so on.")
        return asked[0]


NOWHERE = TargetOptions()


def parse_offset(text: str, expected: str = "a number") -> int:
    """An offset; raises CommandError if the text is not one."""
    if not (text.isascii() and text.isdigit()) or int(text) > OFFSET_MAX:
        raise UsageError(f"{text!r} is no offset: expected {expected}.")
    return int(text)


def parse_duration(text: str) -> int:
    """Milliseconds of an ISO 8601 duration of days, hours, minutes and seconds."""
    millis = duration_ms(text)
    if millis is None:
        raise UsageError(f"{text!r} is no duration: expected one like PT30M or P1DT12H.")
    return in_range(millis, text)


def read_offsets(path: Path) -> dict[Partition, int]:
    """Parse lines of topic,partition,offset; raises CommandError if the file or a line cannot be read."""
    found: dict[Partition, int] = {}
    try:
        with path.open(newline="") as lines:
            for number, row in enumerate(csv.reader(lines), 1):
                if not row:
                    continue
                try:
                    name, partition, offset = (cell.strip() for cell in row)
                    found[name, int(partition)] = int(offset)
                except ValueError:
                    raise CommandError(f"{path}, line {number}: expected topic,partition,offset.") from None
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}.") from None
    if not found:
        raise CommandError(f"{path} holds no offsets.")
    return found


def partitions(
    admin: AdminClient, given: Iterable[str], all_topics: bool, committed: Mapping[Partition, int]
) -> list[Partition]:
    """The partitions of TOPIC and TOPIC:0,1 arguments, sorted."""
    if all_topics:
        chosen = sorted(committed)
        if not chosen:
            raise CommandError("The group has committed no offsets: name topics with --topic.")
        return chosen
    chosen: list[Partition] = []
    for each in given:
        name, colon, numbers = each.partition(":")
        count = existing.partition_count(admin, name)
        try:
            wanted = [int(number) for number in numbers.split(",")] if colon else list(range(count))
        except ValueError:
            raise UsageError(f"{each!r}: expected TOPIC or TOPIC:0,1,2.") from None
        if any(not 0 <= partition < count for partition in wanted):
            raise CommandError(f"{name} has {counted(count, 'partition')}, 0 to {count - 1}.")
        chosen += [(name, partition) for partition in wanted]
    if not chosen:
        raise UsageError("Name topics with --topic.")
    return sorted(set(chosen))


def offsets(admin: AdminClient, which: str | int, chosen: Iterable[Partition]) -> dict[Partition, int]:
    """The "earliest", "latest" or "stable" (end of committed records) offset of each partition, or that of the first
    record at or after a time (ms)."""
    from confluent_kafka import IsolationLevel, TopicPartition
    from confluent_kafka.admin import OffsetSpec

    if isinstance(which, int):
        spec = OffsetSpec.for_timestamp(which)
    else:
        spec = OffsetSpec.earliest() if which == "earliest" else OffsetSpec.latest()
    asked: dict[TopicPartition, OffsetSpec] = {
        TopicPartition(name, each): cast(OffsetSpec, spec) for name, each in chosen
    }
    if not asked:
        return {}
    with plain_errors():
        level = IsolationLevel.READ_COMMITTED if which == "stable" else IsolationLevel.READ_UNCOMMITTED
        futures = admin.list_offsets(asked, isolation_level=level, request_timeout=REQUEST_TIMEOUT_S)
        return {(key.topic, key.partition): future.result(REQUEST_TIMEOUT_S).offset for key, future in futures.items()}


def plan(
    admin: AdminClient, target: Target, chosen: list[Partition], committed: Mapping[Partition, int]
) -> list[tuple[str, int, int]]:
    """(topic, partition, new offset), each limited to the range of the log; reports offsets that were out of range."""
    starts, ends = offsets(admin, "earliest", chosen), offsets(admin, "latest", chosen)
    match target:
        case End(which):
            wanted = dict(starts if which == "earliest" else ends)
        case Since(timestamp_ms):
            found = offsets(admin, timestamp_ms, chosen)
            wanted = {key: offset if offset >= 0 else ends[key] for key, offset in found.items()}
        case Shift(by):
            missing = [f"{name}:{partition}" for name, partition in chosen if (name, partition) not in committed]
            if missing:
                raise CommandError(f"The group has committed nothing to shift for {', '.join(missing)}.")
            wanted = {key: committed[key] + by for key in chosen}
        case Offset(offset):
            wanted = dict.fromkeys(chosen, offset)
        case Listed(listed):
            wanted = dict(listed)
    planned = {key: min(max(wanted[key], starts[key]), ends[key]) for key in chosen}
    for (name, partition), offset in planned.items():
        key = name, partition
        if offset != wanted[key]:
            say(
                f"{name}:{partition}: {wanted[key]} is out of range, {starts[key]} to {ends[key]}: {offset} instead.",
                err=True,
            )
    return [(*key, offset) for key, offset in planned.items()]


def commit(admin: AdminClient, group: str, planned: Iterable[tuple[str, int, int]]) -> None:
    """Commit these offsets for a group without members."""
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

    asked = ConsumerGroupTopicPartitions(group, [TopicPartition(*each) for each in planned])
    with plain_errors():
        answered = wait(admin.alter_consumer_group_offsets([asked], request_timeout=REQUEST_TIMEOUT_S))
    for each in next(iter(answered.values())).topic_partitions:
        if each.error is not None:
            raise CommandError(f"{each.topic}:{each.partition}: {each.error.str()}.")


def forget(bootstrap: str, group: str, chosen: Iterable[Partition]) -> None:
    """Delete committed offsets (OffsetDelete, which confluent-kafka does not offer)."""
    from ottla.client import ClientError, delete_offsets

    try:
        delete_offsets([address(each.strip(), 9092) for each in bootstrap.split(",")], group, list(chosen))
    except ClientError as failure:
        raise CommandError(str(failure)) from None
