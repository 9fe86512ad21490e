"""`ottla consume --share`: a member of a share group at the keyboard.

Knows what can become of a record that was printed: accepted (done), released (somebody gets it again), rejected (nobody
does), or whatever the person answers. Does not know how a record is printed.

A record is acknowledged after it was printed. What was received beyond --max-records is released.
"""

from __future__ import annotations

import sys
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from ottla.cli.connection import plain_errors, sentence
from ottla.cli.output import Failure
from ottla.cli.printing import Columns, Shape, as_json, as_text

if TYPE_CHECKING:
    from confluent_kafka import AcknowledgeType, Message, ShareConsumer

POLL_S = 0.2


class Acknowledging(StrEnum):
    """What becomes of records that were printed."""

    ACCEPT = "accept"
    RELEASE = "release"
    REJECT = "reject"
    ASK = "ask"


ANSWERS = {
    "a": Acknowledging.ACCEPT,
    "": Acknowledging.ACCEPT,
    "r": Acknowledging.RELEASE,
    "x": Acknowledging.REJECT,
}


def consume_share(
    given: dict[str, Any],
    group: str,
    topics: list[str],
    ack: Acknowledging,
    from_beginning: bool,
    shown: Columns,
    format: Shape,
    most: int | None,
    timeout: float | None,
) -> int:
    """Print records as a member of the share group and acknowledge each; how many there were."""
    from confluent_kafka import ShareConsumer

    if from_beginning:
        begin_at_the_beginning(given, group)
    settings = {**given, "group.id": group, "share.acknowledgement.mode": "explicit"}
    with plain_errors():
        consumer = ShareConsumer(settings)
        try:
            consumer.subscribe(topics)
            return print_records(consumer, ack, shown, format, most, timeout)
        finally:
            consumer.close()


def begin_at_the_beginning(given: dict[str, Any], group: str) -> None:
    """Where a share group begins is a config of the group."""
    from confluent_kafka.admin import AdminClient

    from ottla.cli.configs import alter_entries

    alter_entries(AdminClient(given), "group", group, set=["share.auto.offset.reset=earliest"])


def print_records(
    consumer: ShareConsumer, ack: Acknowledging, shown: Columns, format: Shape, most: int | None, timeout: float | None
) -> int:
    from confluent_kafka import AcknowledgeType

    count, last = 0, time.monotonic()
    while most is None or count < most:
        for message in consumer.poll(POLL_S):
            error = message.error()
            if error is not None:
                print(sentence(error), file=sys.stderr)
                continue
            if most is not None and count >= most:
                consumer.acknowledge(message, AcknowledgeType.RELEASE)
                continue
            print(as_json(message) if format is Shape.JSON else as_text(message, shown))
            sys.stdout.flush()
            consumer.acknowledge(message, kind_of(ask(message) if ack is Acknowledging.ASK else ack))
            count, last = count + 1, time.monotonic()
        if timeout is not None and time.monotonic() - last >= timeout:
            break
    told = consumer.commit_sync()
    for place, error in told.items():
        if error is not None:
            raise Failure(f"{place.topic}:{place.partition}: {sentence(error.args[0])}")
    return count


def kind_of(ack: Acknowledging) -> AcknowledgeType:
    from confluent_kafka import AcknowledgeType

    return AcknowledgeType[ack.name]


def ask(message: Message) -> Acknowledging:
    """What the person says. The end of the input releases."""
    tries = message.delivery_count()
    often = f", delivered {tries} times" if tries and tries > 1 else ""
    while True:
        print(f"offset {message.offset()}{often}: [a]ccept, [r]elease or [x] reject? ", end="", file=sys.stderr)
        sys.stderr.flush()
        line = sys.stdin.readline()
        if not line:
            return Acknowledging.RELEASE
        answer = ANSWERS.get(line.strip().lower()[:1])
        if answer is not None:
            return answer
