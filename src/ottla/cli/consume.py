"""`ottla consume`: records of topics to standard output, as text or one JSON object a line.

Decides where to begin, when to stop, and how a record is printed. With --group the positions are the group's, and they
are committed as records are printed; without it the command changes nothing on the cluster. With --share each record is
acknowledged separately (consume_share.py).
"""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.connection import (
    HERE,
    Cluster,
    client_properties,
    complete_groups,
    complete_share_groups,
    complete_topics,
    matching,
    own_clients,
    plain_errors,
    require_listener,
    sentence,
)
from ottla.cli.consume_share import SILENT_S, Acknowledging, ShareReading, consume_share, tell
from ottla.cli.options import with_shared_options
from ottla.cli.output import CommandError, UsageError, counted, say
from ottla.cli.printing import Columns, Shape, Shown, of_message, printer
from ottla.cli.schemas import SchemaRegistry, decoding, registry_of
from ottla.cli.times import parse_time

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message, TopicPartition

EPILOG = "Example: ottla consume clicks --from-beginning -n 10 --format json --exit-at-end"

POLL_S = 0.2
END_WAIT_MS = 20
"""How long a fetch waits at the end of a partition where the end is looked for: librdkafka reports it only then."""
ENDS = ("earliest", "latest")


TopicNames = Annotated[
    list[str],
    typer.Argument(
        metavar="TOPIC...",
        autocompletion=complete_topics,
        help="Topics to read; a name that begins with ^ is a regular expression.",
    ),
]
Group = Annotated[
    str | None,
    typer.Option(
        "--group",
        "-g",
        autocompletion=complete_groups,
        help="Consumer group to join; it commits its position (default: none).",
    ),
]
ShareOption = Annotated[
    str | None,
    typer.Option(
        "--share",
        "-s",
        autocompletion=complete_share_groups,
        help="Share group to join; records are acknowledged one by one (default: none).",
    ),
]
Ack = Annotated[
    Acknowledging | None, typer.Option("--ack", help="How --share acknowledges a printed record (default accept).")
]
FromBeginning = Annotated[
    bool,
    typer.Option(
        "--from-beginning",
        "-f",
        help="Begin at the first record if the group has no position (default: at the end).",
    ),
]
FromTime = Annotated[
    str | None,
    typer.Option(
        "--from-time", metavar="TIME", help="Begin at the first record at or after this time (default: at the end)."
    ),
]
PartitionOption = Annotated[
    int | None, typer.Option("--partition", "-p", min=0, help="Partition to read, with one topic only (default: all).")
]
OffsetOption = Annotated[
    str | None,
    typer.Option(
        "--offset",
        "-o",
        metavar="N",
        help="Offset to begin at: earliest, latest, -N (the last N of each partition), or N with -p.",
    ),
]
Records = Annotated[
    int | None,
    typer.Option("--max-records", "-n", min=1, help="Number of records after which to stop (default: unlimited)."),
]
Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout", min=0, metavar="SECONDS", help="Seconds without a record after which to stop (default: never)."
    ),
]
ExitAtEnd = Annotated[bool, typer.Option("--exit-at-end", "-e", help="Stop at the end of all partitions.")]
FormatOption = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="text|json|FORMAT",
        help="Format: text, json, or one of kcat's: '%t %p %o %k %s\\n', %T %h %K %S (default text).",
    ),
]


@with_shared_options
def consume(
    topics: TopicNames,
    group: Group = None,
    share: ShareOption = None,
    ack: Ack = None,
    from_beginning: FromBeginning = False,
    from_time: FromTime = None,
    partition: PartitionOption = None,
    offset: OffsetOption = None,
    records: Records = None,
    timeout: Timeout = None,
    exit_at_end: ExitAtEnd = False,
    keys: Annotated[bool, typer.Option("--keys", help="Print keys in text format.")] = False,
    timestamps: Annotated[bool, typer.Option("--timestamps", help="Print timestamps in text format.")] = False,
    headers: Annotated[bool, typer.Option("--headers", help="Print headers in text format.")] = False,
    offsets: Annotated[bool, typer.Option("--offsets", help="Print partition and offset in text format.")] = False,
    format: FormatOption = Shape.TEXT,
    schema_registry: SchemaRegistry = None,
    cluster: Cluster = HERE,
) -> None:
    """Print records as they arrive, until Ctrl-C or the limit of -n, --timeout or --exit-at-end."""
    shown = printer(format, Columns(keys, timestamps, headers, offsets))
    if share is not None and (group is not None or partition is not None or exit_at_end):
        raise UsageError("--share goes without --group, --partition and --exit-at-end.")
    if share is None and ack is not None:
        raise UsageError("--ack is for --share.")
    if partition is not None and (len(topics) != 1 or group is not None):
        raise UsageError("--partition is for one topic, without --group.")
    if offset is not None and (group is not None or share is not None):
        raise UsageError("--offset goes without --group and --share; reset-offsets moves a group.")
    if offset is not None and partition is None and not offset.startswith("-") and offset not in ENDS:
        raise UsageError("--offset N is for one partition: name it with --partition. Or write earliest, latest or -N.")
    since_ms = None if from_time is None else parse_time(from_time)
    if since_ms is not None and (share or group or offset is not None or from_beginning):
        raise UsageError(
            "--from-time goes without --group, --share, --offset and --from-beginning; "
            "reset-offsets --to-datetime moves a group."
        )
    registry = registry_of(cluster, schema_registry)
    given = client_properties(cluster)
    with ExitStack() as stack:
        show = shown
        if registry is not None:
            decode = decoding(registry, tell, stack)
            show = lambda record: shown(decode(record))  # noqa: E731
        if share is not None:
            acked = ack or Acknowledging.ACCEPT
            count = consume_share(given, ShareReading(share, topics, acked, from_beginning, show, records, timeout))
        else:
            start = Start(partition, offset, from_beginning, since_ms)
            count = consume_topics(given, topics, group, start, show, records, timeout, exit_at_end)
    say(f"{counted(count, 'record')}.", err=True)


@dataclass(frozen=True, slots=True)
class Start:
    """Where to begin without a committed position of a group; `partition` None: all partitions."""

    partition: int | None
    offset: str | None
    earliest: bool
    since_ms: int | None


def consume_topics(
    given: dict[str, Any],
    topics: list[str],
    group: str | None,
    start: Start,
    shown: Callable[[Shown], str],
    most: int | None,
    timeout: float | None,
    exit_at_end: bool,
) -> int:
    """Print records, as a member of the group or without one; returns how many."""
    from confluent_kafka import Consumer

    waiting = Waiting(given, group)
    settings = {
        "error_cb": waiting.failed,
        "group.id": group or f"ottla-consume-{uuid.uuid4().hex[:12]}",
        "auto.offset.reset": "earliest" if start.earliest else "latest",
        "enable.auto.commit": group is not None,
        "enable.partition.eof": exit_at_end,
        **({"fetch.wait.max.ms": END_WAIT_MS} if exit_at_end else {}),
        "enable.auto.offset.store": False,
        **given,
    }
    with plain_errors():
        consumer = Consumer(settings)
        printed = Printed(consumer)
        try:
            known = existing(consumer, topics)
            if not exit_at_end and begins_at_the_end(consumer, known, group, start):
                waiting.why = (
                    f"waiting at the end of {', '.join(known)} for what is produced from now on; "
                    "--from-beginning begins at the first record."
                )
            if group is not None:
                consumer.subscribe(topics, on_revoke=lambda *_: printed.flush())
            else:
                consumer.assign(positions(consumer, known, start))
            return print_records(consumer, printed, waiting, shown, most, timeout, exit_at_end)
        finally:
            consumer.close()


def existing(consumer: Consumer, topics: list[str]) -> dict[str, Any]:
    """The named topics, and those that match a regular expression; raises CommandError for a missing one."""
    found: dict[str, Any] = {}
    for name in topics:
        if name.startswith("^"):
            every = consumer.list_topics(timeout=30).topics
            matched = matching(name, every)
            if not matched:
                raise CommandError(f"No topic matches {name}.")
            found |= {each: every[each] for each in matched}
        else:
            found[name] = consumer.list_topics(name, timeout=30).topics.get(name)
    absent = [name for name, topic in found.items() if topic is None or topic.error is not None]
    if absent:
        raise CommandError(f"There is no topic {', '.join(absent)}.")
    return found


def begins_at_the_end(consumer: Consumer, known: dict[str, Any], group: str | None, start: Start) -> bool:
    from confluent_kafka import TopicPartition

    if start.earliest or start.offset is not None or start.since_ms is not None:
        return False
    every = [TopicPartition(name, each) for name, topic in known.items() for each in topic.partitions]
    return group is None or all(each.offset < 0 for each in consumer.committed(every, timeout=30))


def positions(consumer: Consumer, known: dict[str, Any], start: Start) -> list[TopicPartition]:
    """Every partition, or the chosen one, and the offset to begin at."""
    from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, TopicPartition

    if start.partition is not None:
        ((name, topic),) = known.items()
        if start.partition not in topic.partitions:
            raise CommandError(f"{name} has no partition {start.partition}.")
        chosen = [TopicPartition(name, start.partition)]
    else:
        chosen = [TopicPartition(name, each) for name, topic in known.items() for each in topic.partitions]
    for each in chosen:
        if start.offset is not None:
            each.offset = position(consumer, each, start.offset)
        elif start.since_ms is not None:
            each.offset = start.since_ms
        else:
            each.offset = OFFSET_BEGINNING if start.earliest else OFFSET_END
    return chosen if start.since_ms is None else consumer.offsets_for_times(chosen, timeout=30)


def position(consumer: Consumer, partition: TopicPartition, text: str) -> int:
    """The offset that earliest, latest, N or -N means in this partition."""
    low, high = consumer.get_watermark_offsets(partition, timeout=30)
    if text in ENDS:
        return low if text == "earliest" else high
    try:
        number = int(text)
    except ValueError:
        raise UsageError(f"{text!r} is no offset: expected earliest, latest, N or -N.") from None
    if text.startswith("-"):
        return max(low, high + number)
    if not low <= number <= high:
        held = f"its offsets are {low} to {high - 1}" if low < high else f"it holds no record, the next one gets {high}"
        raise CommandError(f"{partition.topic}-{partition.partition} has no offset {number}: {held}.")
    return number


def print_records(
    consumer: Consumer,
    printed: Printed,
    waiting: Waiting,
    shown: Callable[[Shown], str],
    most: int | None,
    timeout: float | None,
    exit_at_end: bool,
) -> int:
    """Print records until it is time to stop; returns how many."""
    from confluent_kafka import KafkaError, KafkaException

    count, last, ended = 0, time.monotonic(), set[tuple[str, int]]()
    try:
        while most is None or count < most:
            message = consumer.poll(0 if printed.pending else POLL_S)
            if message is None:
                printed.flush()
                waiting.idle(time.monotonic() - last)
                if timeout is not None and time.monotonic() - last >= timeout:
                    break
                continue
            error = message.error()
            place = (str(message.topic()), int(message.partition() or 0))
            if error is None:
                ended.discard(place)
                waiting.moved()
                printed.write(message, shown(of_message(message)))
                count, last = count + 1, time.monotonic()
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(place)
                if exit_at_end and ended >= {(each.topic, each.partition) for each in consumer.assignment()}:
                    break
            elif error.code() == KafkaError.INCONSISTENT_GROUP_PROTOCOL and waiting.is_share_group():
                raise CommandError(
                    f"{waiting.group} is a share group, not a consumer group: join it with --share, "
                    "or choose another name."
                )
            elif error.fatal() or not error.retriable():
                raise KafkaException(error)
            else:
                say(sentence(error), err=True)
    finally:
        printed.flush()
    return count


class Waiting:
    """Reports, once, why no record arrives: `why` at first, or that no broker answers."""

    def __init__(self, given: dict[str, Any], group: str | None) -> None:
        self.why: str | None = None
        self.group = group
        self._given = given
        self._bootstrap: str = given["bootstrap.servers"]
        self._is_away = self._is_told = False

    def idle(self, idle_s: float) -> None:
        if self.why is not None and idle_s >= SILENT_S:
            tell(self.why)
            self.why = None
        if self._is_away and not self._is_told:
            try:
                require_listener(self._bootstrap)
                self._is_away = False  # one of several addresses failed, for example ::1 of localhost
            except CommandError as failure:
                self._is_told = True
                tell(f"{failure} Trying on since {time.strftime('%H:%M:%S')}.")

    def is_share_group(self) -> bool:
        """Whether the group to join is a share group; False if the cluster does not say."""
        from ottla.client import ClientError
        from ottla.client.share_groups import list_share_groups

        with suppress(ClientError, CommandError), own_clients(self._given)() as asked:
            return any(name == self.group for name, _ in list_share_groups(asked))
        return False

    def moved(self) -> None:
        self.why = None
        self._is_away = self._is_told = False

    def failed(self, error: Any) -> None:
        from confluent_kafka import KafkaError

        self._is_away = self._is_away or error.code() == KafkaError._ALL_BROKERS_DOWN


class Printed:
    """The printed records. The group's position advances only when records have left this process, because `head` may
    have closed the pipe."""

    FLUSHED_AT = 500

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self.pending: list[Message] = []

    def write(self, message: Message, text: str) -> None:
        try:
            sys.stdout.write(text)
        except BaseException:
            self.pending.clear()  # unknown which of these left; the next flush may have nothing to do
            raise
        self.pending.append(message)
        if len(self.pending) >= self.FLUSHED_AT:
            self.flush()

    def flush(self) -> None:
        from confluent_kafka import KafkaError, KafkaException

        pending, self.pending = self.pending, []
        sys.stdout.flush()
        for message in pending:
            try:
                self._consumer.store_offsets(message)
            except KafkaException as error:
                if error.args[0].code() != KafkaError._STATE:  # the partition belongs to another member now
                    raise
