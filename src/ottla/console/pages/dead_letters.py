"""Shows the dead letters of a share group with their causes, and sends them back."""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from typing import Final

from ottla.client.dead_letters import (
    DEAD_LETTERS,
    REASONS,
    REDRIVE_PREFIX,
    DeadLetterFilter,
    Letter,
    Pace,
    Progress,
    Redrive,
    letter_of,
    run,
)
from ottla.client.share_groups import PAUSED
from ottla.console import letters
from ottla.console.browsing.scan import scanned
from ottla.console.letter_owners import READ_MAX, Waiting
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
from ottla.console.reading import configs
from ottla.console.redrive_times import SentBack
from ottla.console.worker_reasons import cut
from ottla.doctor.words import count
from ottla.escaping import visible
from ottla.protocol.config_resources import ConfigResourceType

LETTERS_BYTES: Final = 16 << 20
OUTCOMES: Final = {"rejected": "rejected by a member", "exhausted": "delivery limit reached"}
"""What the page shows for REASONS."""


def topic_of_letters(context: Context) -> tuple[str, str]:
    """The group that the address names, and its dead-letter topic. Raises InputError if it has none."""
    group, topic, _ = group_named(context)
    return group, topic


def group_named(context: Context) -> tuple[str, str, bool]:
    """The group that the address names, its dead-letter topic, and whether it is paused. Raises InputError without a
    dead-letter topic."""
    group = context.need("name")
    found = {each.name: each.value for each in configs(context, ConfigResourceType.GROUP, group)}
    topic = found.get(DEAD_LETTERS)
    if not topic:
        raise InputError(f"The group {visible(group)} has no dead-letter topic: its config {DEAD_LETTERS} is not set.")
    return group, topic, found.get(PAUSED) == "true"


def load(context: Context) -> DeadLetters:
    """The newest dead letters of the group that the address names."""
    group, topic, is_paused = group_named(context)
    redrive = opened(context, group, topic)
    unseen: list[str] = []
    found = newest(context, group, topic, redrive, unseen)
    rows = [row_of(each, is_back=each.offset in redrive.progress[each.partition]) for each in found]
    return DeadLetters(
        title=f"Dead letters of {visible(group)}",
        command=context.command("share-groups", "redrive", group),
        owner=group,
        topic=topic,
        is_paused=is_paused,
        outcomes=OUTCOMES,
        unseen=tuple(unseen),
        **letters.facts_of(with_times(context, rows, f"{REDRIVE_PREFIX}{group}", topic, sent_until)),
    )


def sent_until(offset: int, metadata: str) -> SentBack:
    """The dead letters that were sent back according to a commit of a redrive."""
    return Progress.of(offset, metadata).__contains__


def opened(context: Context, group: str, topic: str) -> Redrive:
    """The progress of the group's redrives."""
    redrive = Redrive(context.client, group, topic)
    redrive.open()
    return redrive


def newest(context: Context, group: str, topic: str, redrive: Redrive, unseen: list[str]) -> list[Letter]:
    """The group's dead letters among the newest records of each partition."""
    starts = {index: max(redrive.starts[index], end - READ_MAX) for index, end in redrive.ends.items()}
    rows, positions, _ = scanned(context.client, topic, starts, redrive.ends, LETTERS_BYTES, unseen)
    unread = sum(max(0, end - positions[index]) for index, end in redrive.ends.items())
    if unread and not unseen:
        unseen.append(f"{count(unread, 'record')}: there was too much before them.")
    return [
        letter
        for each in rows
        if (letter := letter_of(each.partition, each.record)) is not None and letter.group == group
    ]


def waiting_of(context: Context, unseen: list[str]) -> Waiting | None:
    """The dead letters of the group that the address names that were not sent back; None without a topic for them."""
    with suppress(InputError):
        group, topic = topic_of_letters(context)
        redrive, wait_s = opened(context, group, topic), context.lease.limits.left_s()
        return context.session.shared.letters.waiting(context.client, group, topic, redrive, wait_s, unseen)
    return None


def row_of(letter: Letter, *, is_back: bool) -> LetterRow:
    """The row of a dead letter."""
    return LetterRow(
        letter.partition,
        letter.offset,
        letter.topic,
        letter.source_partition,
        letter.source_offset,
        letter.reason,
        letter.topic,
        letter.deliveries,
        letter.redrives,
        letter.timestamp_ms,
        is_back,
        beginning(letter.value),
        letter.first_failed_ms,
        letter.last_failed_ms,
        None if letter.worker_reason is None else cut(letter.worker_reason),
        letter.client_id,
        back_to=letter.topic if is_back else None,
    )


# ---- redrive -------------------------------------------------------------------------------------------------------


def redrive_fields(_: Context) -> tuple[Field, ...]:
    return letters.redrive_fields(REASONS, Field("topic", "Only records of this topic", hint="Empty: of every topic."))


def wanted_in(context: Context) -> tuple[DeadLetterFilter, int]:
    """The dead letters that the form selects, and how many at most. Raises InputError."""
    topic = context.form.get("topic", "").strip()
    return DeadLetterFilter(topic or None, reason_in(context, REASONS)), most_in(context)


def redrive_preview(context: Context) -> Preview:
    """The dead letters that would be sent back. Raises InputError."""
    group, topic = topic_of_letters(context)
    wanted, most = wanted_in(context)
    found = list(islice((each for each in opened(context, group, topic).letters() if wanted.takes(each)), most))
    if not found:
        raise InputError("No dead letter of this kind waits to be sent back.")
    again = sum(each.redrives >= CIRCLES for each in found)
    options = [
        *([] if wanted.reason is None else ["--reason", wanted.reason]),
        *([] if wanted.topic is None else ["--topic", wanted.topic]),
    ]
    where = destinations(each.topic for each in found)
    warning = f"{count(again, 'record')} of them went back {CIRCLES} times or more and failed again."
    return Preview(
        group,
        (f"Sends {count(len(found), 'record')} back: {where}. {READERS}",),
        (warning,) if again else (),
        ("Dead letter", "Topic", "Partition", "Offset", "Outcome", "Reason given", "Deliveries", "Went back before",
         "Value"),
        tuple(
            (f"partition {each.partition}, offset {each.offset}",
             each.topic, each.source_partition, each.source_offset, OUTCOMES.get(each.reason, each.reason),
             cut(each.worker_reason or "-"), each.deliveries, each.redrives, beginning(each.value))
            for each in found[:50]
        ),
        facts=[(each.partition, each.offset) for each in found],
        command=context.command("share-groups", "redrive", group, *options, "-n", str(most), "--execute"),
    )  # fmt: skip


def redrive(context: Context) -> Done:
    """Send the dead letters back."""
    group, topic, is_paused = group_named(context)
    wanted, most = wanted_in(context)
    done = run(opened(context, group, topic), context.client, wanted, most, Pace(None))
    gone = f" {count(done.gone, 'record')} could not be found any more." if done.gone else ""
    details = {"group": group, "sent_back": done.went, "left_out": done.left_out, "gone": done.gone}
    then = " The group is paused: resume it, so that its members get them." if is_paused and done.went else ""
    sentence = f"Sent {count(done.went, 'record')} of {visible(group)} back.{gone}{then}"
    return Done(sentence, url("/dead-letters", name=group), details)


PAGE: Final = Page(
    name="dead_letters",
    path="/dead-letters",
    load=load,
    under="/share-groups",
    refresh_s=15,
    changes=(Change("redrive", "Send back", redrive_preview, redrive, redrive_fields, is_primary=True),),
)
