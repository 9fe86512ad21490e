"""Shows the dead letters of a KMQ queue with their causes, and sends them back as `ottla kmq redrive` does."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ottla.client.client import Client
from ottla.client.dead_letters import OFFSETS_BY_NAME, append_records
from ottla.client.errors import BrokerError, ClientError, check
from ottla.console import letters
from ottla.console.browsing.partitioner import partition_of
from ottla.console.kmq_reading import (
    Letters,
    config_named,
    done_from,
    names_of,
    options_of,
    read_letters,
    topic_of_letters,
)
from ottla.console.letter_owners import READ_MAX
from ottla.console.letters import (
    CIRCLES,
    READERS,
    DeadLetters,
    LetterRow,
    beginning,
    destinations,
    most_in,
    reason_in,
    with_times,
)
from ottla.console.page import Change, Context, Done, Field, InputError, Page, Preview, url
from ottla.console.redrive_times import SentBack
from ottla.doctor.words import count
from ottla.escaping import visible
from ottla.kmq.config import KmqConfig
from ottla.kmq.events import Reason
from ottla.kmq.redrive import BATCH, METADATA_BYTES_MAX, Choice, Letter, redrive_group
from ottla.kmq.redrive import Done as Progress
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.records import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class KmqDeadLetters(DeadLetters):
    """The newest dead letters of a queue. `names`: the query of its address."""

    names: Mapping[str, str]


def load(context: Context) -> KmqDeadLetters:
    """The newest dead letters of the queue that the address names."""
    config = config_named(context)
    topic = topic_of_letters(context, config)
    unseen: list[str] = []
    found = read_letters(context, config, topic, unseen, newest=READ_MAX)
    rows = [row_of(each, found, config.queue) for each in found.letters]
    return KmqDeadLetters(
        title=f"Dead letters of {visible(config.queue)}",
        command=context.command("kmq", "redrive", config.queue, *options_of(config, of_workers=False)),
        owner=config.queue,
        topic=topic.name,
        names=names_of(config),
        unseen=tuple(unseen),
        **letters.facts_of(with_times(context, rows, redrive_group(config), config.dead_letters, sent_until)),
    )


def sent_until(offset: int, metadata: str) -> SentBack:
    """The dead letters that were sent back according to a commit of a redrive. Raises ClientError."""
    return done_from(offset, metadata, 0).__contains__


def row_of(letter: Letter, found: Letters, queue: str) -> LetterRow:
    """The row of a dead letter of the queue; `at_ms`: when it became one."""
    source, is_back = letter.source, found.is_back(letter)
    return LetterRow(
        letter.partition,
        letter.offset,
        source.topic,
        source.partition,
        source.offset,
        source.reason or "unknown",
        source.text,
        source.delivery_count,
        letter.redrives,
        letter.timestamp_ms if source.at_ms is None else source.at_ms,
        is_back,
        beginning(letter.value),
        back_to=source.topic or queue if is_back and not letter.lost else None,
    )


# ---- redrive -------------------------------------------------------------------------------------------------------


def redrive_fields(_: Context) -> tuple[Field, ...]:
    narrower = Field("partition", "Only messages of this partition", hint="Empty: of every partition.")
    return letters.redrive_fields(Reason, narrower)


def choice_in(context: Context) -> tuple[Choice, int, list[str]]:
    """The dead letters that the form selects, how many at most, and the options of the command. Raises InputError."""
    reason, partition = reason_in(context, set(Reason)), context.form.get("partition", "").strip()
    if partition and not (partition.isascii() and partition.isdigit() and len(partition) < 10):
        raise InputError("Give the number of a partition, or nothing.")
    most = most_in(context)
    options = [
        *(["--partition", str(int(partition))] if partition else []),
        *([] if reason is None else ["--reason", reason]),
        *("--max-records", str(most)),
    ]
    chosen = None if reason is None else Reason(reason)
    return Choice(partition=int(partition) if partition else None, reason=chosen), most, options


def chosen(context: Context, config: KmqConfig, choice: Choice, most: int) -> tuple[list[Letter], Letters]:
    """The dead letters that would be sent back, and all that were read. Raises InputError if something is unknown:
    a dead letter could be sent back twice."""
    unseen: list[str] = []
    found = read_letters(context, config, topic_of_letters(context, config), unseen)
    if unseen:
        raise InputError(f"Not everything could be read, so nothing is sent back now: {' '.join(unseen)}")
    return [each for each in found.letters if choice.takes(each)][:most], found


def redrive_preview(context: Context) -> Preview:
    """The dead letters that would be sent back. Raises InputError."""
    config = config_named(context)
    choice, most, options = choice_in(context)
    sent, found = chosen(context, config, choice, most)
    if not sent:
        rest = "" if found.is_over else " Only the oldest were read."
        raise InputError(f"No dead letter of this kind waits to be sent back.{rest}")
    lost, again = sum(each.lost for each in sent), sum(each.redrives >= CIRCLES for each in sent)
    where = destinations(each.source.topic or config.queue for each in sent if not each.lost)
    warnings = [
        (again, f"{count(again, 'message')} of them went back {CIRCLES} times or more and failed again."),
        (lost, f"{count(lost, 'dead letter')} of them have no message to send: it was lost. They count as done."),
        (not found.is_over, "Only the oldest dead letters were read; there are more."),
    ]
    return Preview(
        config.queue,
        (f"Sends {count(len(sent) - lost, 'message')} back: {where}. {READERS}",),
        tuple(sentence for holds, sentence in warnings if holds),
        ("Dead letter", "Topic", "Partition", "Offset", "Cause", "Reason", "Deliveries", "Went back before", "Value"),
        tuple(
            (f"partition {each.partition}, offset {each.offset}",
             each.source.topic, each.source.partition, each.source.offset,
             each.source.reason, each.source.text, each.source.delivery_count, each.redrives,
             beginning(each.value))
            for each in sent[:50]
        ),
        facts=[(each.partition, each.offset) for each in sent],
        command=context.command(
            "kmq", "redrive", config.queue, *options_of(config, of_workers=False), *options, "--execute"
        ),
    )  # fmt: skip


def redrive(context: Context) -> Done:
    """Send the dead letters back, and commit after each batch which of them are done. Raises ClientError."""
    config = config_named(context)
    choice, most, _ = choice_in(context)
    sent, found = chosen(context, config, choice, most)
    counts = {each: len(context.client.topic(each).leaders) for each in {config.queue, *topics_in(sent)}}
    for partition in sorted({each.partition for each in sent}):
        progress = found.done[partition]
        ours = [each for each in sent if each.partition == partition]
        for batch in (ours[at : at + BATCH] for at in range(0, len(ours), BATCH)):
            position, metadata = progress.position(each.offset for each in batch)
            if len(metadata) > METADATA_BYTES_MAX:
                raise ClientError(
                    f"Stopped in partition {partition}: the dead letters chosen are too scattered to remember which "
                    "were sent. Send back some of those between them too, or all."
                )
            send(context.client, config, batch, counts)
            for each in batch:
                progress.add(each.offset)
            commit(context.client, config, partition, progress, position, metadata)
    lost = sum(each.lost for each in sent)
    details = {"queue": config.queue, "sent_back": len(sent) - lost, "lost": lost}
    sentence = f"Sent {count(len(sent) - lost, 'message')} of {visible(config.queue)} back."
    return Done(sentence, url("/kmq-dead-letters", **names_of(config)), details)


def topics_in(sent: Iterable[Letter]) -> set[str]:
    return {each.source.topic for each in sent if each.source.topic and not each.lost}


def send(client: Client, config: KmqConfig, letters: Sequence[Letter], counts: Mapping[str, int]) -> None:
    """Append the messages of dead letters to their partitions. Raises ClientError."""
    by_place: dict[tuple[str, int], list[Letter]] = {}
    for each in letters:
        if not each.lost:
            topic, partition = each.place(config, counts)
            if partition < 0:
                partition = 0 if each.key is None else partition_of(each.key, counts[topic])
            by_place.setdefault((topic, partition), []).append(each)
    for (topic, partition), rows in by_place.items():
        try:
            append_records(client, topic, partition, [record_of(config, each, each.timestamp_ms) for each in rows])
        except BrokerError as refused:
            if refused.code != ErrorCode.INVALID_TIMESTAMP:
                raise
            append_records(client, topic, partition, [record_of(config, each, 0) for each in rows])


def record_of(config: KmqConfig, letter: Letter, timestamp_ms: int) -> Record:
    """The message of a dead letter as it goes back; now, if it has no timestamp."""
    stamp = timestamp_ms or int(time.time() * 1000)
    return Record(timestamp_ms=stamp, key=letter.key, value=letter.value, headers=letter.headers_back(config))


def commit(client: Client, config: KmqConfig, partition: int, progress: Progress, start: int, metadata: str) -> None:
    """Commit which dead letters of a partition are done. Raises ClientError."""
    group = redrive_group(config)
    row = OffsetCommitRequestPartition(partition, start, committed_metadata=metadata)
    topic = OffsetCommitRequestTopic(config.dead_letters, partitions=[row])
    coordinator = client.coordinator(group)
    version = min(coordinator.version_of(ApiKey.OFFSET_COMMIT), OFFSETS_BY_NAME)
    for place in coordinator.send(OffsetCommitRequest(group, topics=[topic]), version).topics:
        for part in place.partitions:
            check(part.error_code, f"the progress of redrives of {visible(config.queue)}")
    progress.start = start
    progress.beyond = {each for each in progress.beyond if each >= start}


PAGE: Final = Page(
    name="kmq_dead_letters",
    path="/kmq-dead-letters",
    load=load,
    under="/kmq-queues",
    refresh_s=15,
    changes=(Change("redrive", "Send back", redrive_preview, redrive, redrive_fields, is_primary=True),),
)
