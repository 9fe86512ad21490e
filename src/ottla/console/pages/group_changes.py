"""Changes of a consumer group or share group: its positions, the offsets of a topic, the group itself.

Source: ConsumerGroupCommand (KIP-122) for the targets of a reset.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Final

from ottla.client.client import TopicPartition
from ottla.client.connection import Connection
from ottla.client.errors import check
from ottla.client.share_groups import alter_share_group_offsets
from ottla.console.group_reading import group_of
from ottla.console.page import Context, Done, Field, InputError, Preview, time_in, url
from ottla.console.reading import extents, leaders_at, leaders_of, offsets, topic_of
from ottla.doctor.snapshot import SHARE, Group
from ottla.doctor.words import count, place
from ottla.escaping import visible
from ottla.protocol.apis import ApiKey
from ottla.protocol.messages.delete_groups import DeleteGroupsRequest
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)

ALL_TOPICS: Final = "every topic for which the group has offsets"
FIRST, END, TIME, OFFSET, SHIFT = (
    "the first record",
    "the end",
    "the first record since a time",
    "an offset",
    "a shift of the present offset",
)
TARGETS: Final = (FIRST, END, TIME, OFFSET, SHIFT)
OPTIONS: Final = {
    FIRST: "--to-earliest",
    END: "--to-latest",
    TIME: "--to-datetime",
    OFFSET: "--to-offset",
    SHIFT: "--shift-by",
}
"""The options of `ottla groups reset-offsets`."""
COMMITS_BY_NAME: Final = 9
"""The last version of OffsetCommit that names topics, not their ids."""
ROWS_MAX: Final = 200


def unused(context: Context) -> tuple[Group, Connection]:
    """The group that the address names, and its coordinator. Raises InputError while it has members."""
    group, node_id = group_of(context, context.need("name"))
    if group.members:
        members = count(len(group.members), "member")
        raise InputError(f"The group has {members}. Stop them first: this can only be changed while it has none.")
    return group, context.client.broker(node_id)


# ---- reset ---------------------------------------------------------------------------------------------------------


def reset_fields(context: Context) -> tuple[Field, ...]:
    group, _ = group_of(context, context.need("name"))
    topics = sorted({topic for topic, _ in group.committed})
    return (
        Field("topic", "Topic", "select", ALL_TOPICS, (ALL_TOPICS, *topics)),
        Field("other", "Another topic", hint="Instead: a topic for which the group has no offsets yet."),
        Field("to", "Move to", "select", FIRST, TARGETS[:-1] if group.type == SHARE else TARGETS),
        Field(
            "value",
            "Time, offset or shift",
            hint="2026-01-31T08:00:00Z, an offset, or how many records to skip (negative: to repeat).",
        ),
    )


def reset_preview(context: Context) -> Preview:
    """The offsets before and after, and what that means for the group."""
    group, _ = unused(context)
    planned, limited = plan(context, group)
    before = {each: known.offset for each, known in group.committed.items()}
    again = sum(max(0, before[each] - offset) for each, offset in planned.items() if each in before)
    skipped = sum(max(0, offset - before[each]) for each, offset in planned.items() if each in before)
    rows = [
        (*each, before.get(each, "none"), offset, effect(before.get(each), offset)) for each, offset in planned.items()
    ]
    warnings = [
        *([f"{count(again, 'record')} will be read again."] if again else []),
        *([f"{count(skipped, 'record')} will be skipped without being read."] if skipped else []),
        *(f"{place(each)}: {wanted} is outside the log, which decides instead." for each, wanted in limited),
    ]
    to = context.form.get("to", "")
    topic = chosen_topic(context)
    options = ["--all-topics"] if topic is None else ["--topic", topic]
    value = [context.form.get("value", "").strip()] if to in (TIME, OFFSET, SHIFT) else []
    return Preview(
        group.name,
        (f"Moves the offsets of {visible(group.name)} in {count(len(planned), 'partition')}.",),
        tuple(warnings[:20]),
        ("Topic", "Partition", "Offset before", "Offset after", "Effect"),
        tuple(rows[:ROWS_MAX]),
        facts=sorted(before.items()),
        command=context.command(
            noun_of(group), "reset-offsets", group.name, *options, OPTIONS[to], *value, "--execute"
        ),
    )


def effect(before: int | None, after: int) -> str:
    """The effect of a move on readers."""
    if before is None:
        return "begins here"
    if after < before:
        return f"{count(before - after, 'record')} again"
    return f"{count(after - before, 'record')} skipped" if after > before else "unchanged"


def reset(context: Context) -> Done:
    """Move the group to the planned offsets."""
    group, coordinator = unused(context)
    planned, _ = plan(context, group)
    if group.type == SHARE:
        alter_share_group_offsets(context.client, group.name, [(*each, offset) for each, offset in planned.items()])
    else:
        commit(coordinator, group.name, planned)
    details = {
        "group": group.name,
        "before": {place(each): known.offset for each, known in group.committed.items() if each in planned},
        "after": {place(each): offset for each, offset in planned.items()},
    }
    sentence = f"Moved the offsets of {visible(group.name)} in {count(len(planned), 'partition')}."
    return Done(sentence, page_of(group), details)


def commit(coordinator: Connection, name: str, planned: Mapping[TopicPartition, int]) -> None:
    """Commit offsets for a group without members. Raises ClientError."""
    topics = [
        OffsetCommitRequestTopic(
            topic, partitions=[OffsetCommitRequestPartition(each[1], planned[each]) for each in places]
        )
        for topic, places in groupby(sorted(planned), key=lambda each: each[0])
    ]
    version = min(coordinator.version_of(ApiKey.OFFSET_COMMIT), COMMITS_BY_NAME)
    answer = coordinator.send(OffsetCommitRequest(name, topics=topics), version)
    for topic in answer.topics:
        for part in topic.partitions:
            check(part.error_code, f"the offset of {place((visible(topic.name), part.partition_index))}")


def noun_of(group: Group) -> str:
    """The `ottla` command for groups of this type."""
    return "share-groups" if group.type == SHARE else "groups"


def page_of(group: Group) -> str:
    """The address of the group's page."""
    return url("/share-group" if group.type == SHARE else "/group", name=group.name)


def chosen_topic(context: Context) -> str | None:
    """The topic that the form names; None for all topics of the group."""
    other = context.form.get("other", "").strip()
    topic = other or context.form.get("topic", ALL_TOPICS)
    return None if topic == ALL_TOPICS else topic


def plan(context: Context, group: Group) -> tuple[dict[TopicPartition, int], list[tuple[TopicPartition, int]]]:
    """The offset after the reset for each partition, and those that had to be limited to the log. Raises InputError."""
    name = chosen_topic(context)
    if name is not None:
        leaders = leaders_of([topic_of(context, name)])
        places = set(leaders)
    else:
        places = set(group.committed)
        if not places:
            raise InputError("The group has no offsets. Name a topic.")
        leaders = leaders_at(context, places)
    starts, ends = extents(context, leaders)
    missing = sorted(each for each in places if each not in starts or each not in ends)
    if missing:
        raise InputError(f"The offsets of {place(missing[0])} are not known: its leader does not answer.")
    wanted = targets(context, group, leaders, starts, ends)
    planned = {each: min(max(wanted[each], starts[each]), ends[each]) for each in sorted(places)}
    return planned, [(each, wanted[each]) for each in planned if planned[each] != wanted[each]]


def targets(
    context: Context,
    group: Group,
    leaders: Mapping[TopicPartition, int],
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """The offsets that the form asks for, which may lie outside the log. Raises InputError."""
    to, value = context.form.get("to", ""), context.form.get("value", "").strip()
    if to == FIRST:
        return dict(starts)
    if to == END:
        return dict(ends)
    if to == TIME:
        found = offsets(context, leaders, time_in(value))
        return {each: found[each] if found.get(each, -1) >= 0 else ends[each] for each in ends}
    number = number_of(value, least=0 if to == OFFSET else -(1 << 62))
    if to == OFFSET:
        return dict.fromkeys(ends, number)
    if to != SHIFT:
        raise InputError("Choose where to move to.")
    without = sorted(each for each in ends if each not in group.committed)
    if without:
        raise InputError(f"The group has no offset to shift in {place(without[0])}.")
    return {each: group.committed[each].offset + number for each in ends}


def number_of(text: str, least: int) -> int:
    """A whole number. Raises InputError."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 19 and int(text) >= least):
        raise InputError("Give a whole number as offset or shift.")
    return int(text)


# ---- the offsets of a topic ----------------------------------------------------------------------------------------


def forget_fields(context: Context) -> tuple[Field, ...]:
    group, _ = group_of(context, context.need("name"))
    return (Field("topic", "Topic", "select", options=tuple(sorted({topic for topic, _ in group.committed}))),)


def forgotten(context: Context, group: Group) -> list[TopicPartition]:
    """The partitions whose offsets would be deleted. Raises InputError."""
    topic = context.form.get("topic", "")
    found = sorted(each for each in group.committed if each[0] == topic)
    if not found:
        raise InputError(f"The group has no offsets in {visible(topic) or 'that topic'}.")
    if any(each in member.owned for member in group.members for each in found):
        raise InputError("Members of the group read this topic. Stop them first.")
    return found


def forget_preview(context: Context) -> Preview:
    """The offsets that would be deleted."""
    group, _ = group_of(context, context.need("name"))
    found = forgotten(context, group)
    topic = found[0][0]
    return Preview(
        group.name,
        (f"Deletes the offsets of {visible(group.name)} in {count(len(found), 'partition')} of {visible(topic)}.",),
        ("A member that reads the topic again begins where auto.offset.reset says.",),
        ("Topic", "Partition", "Offset"),
        tuple((*each, group.committed[each].offset) for each in found[:ROWS_MAX]),
        facts=[(each, group.committed[each].offset) for each in found],
        command=context.command("groups", "delete-offsets", group.name, "--topic", topic),
    )


def forget(context: Context) -> Done:
    """Delete the offsets of a topic."""
    group, node_id = group_of(context, context.need("name"))
    found = forgotten(context, group)
    topic = found[0][0]
    rows = [OffsetDeleteRequestPartition(index) for _, index in found]
    request = OffsetDeleteRequest(group.name, [OffsetDeleteRequestTopic(topic, rows)])
    answer = context.client.broker(node_id).send(request)
    check(answer.error_code, f"the offsets of group {visible(group.name)}")
    for each in answer.topics:
        for part in each.partitions:
            check(part.error_code, f"the offset of {place((visible(each.name), part.partition_index))}")
    details = {"group": group.name, "before": {place(each): group.committed[each].offset for each in found}}
    sentence = f"Deleted the offsets of {visible(group.name)} in {visible(topic)}."
    return Done(sentence, url("/group", name=group.name), details)


# ---- the group -----------------------------------------------------------------------------------------------------


def delete_preview(context: Context) -> Preview:
    """The positions that would be lost with the group."""
    group, _ = unused(context)
    topics = len({topic for topic, _ in group.committed})
    return Preview(
        group.name,
        (
            f"Deletes the group {visible(group.name)} with its offsets in {count(len(group.committed), 'partition')} "
            f"of {count(topics, 'topic')}.",
        ),
        ("Its place in these topics is lost. A new group of this name begins where its offset reset says.",),
        facts=sorted((each, known.offset) for each, known in group.committed.items()),
        command=context.command(noun_of(group), "delete", group.name),
    )


def delete(context: Context) -> Done:
    """Delete the group."""
    group, coordinator = unused(context)
    (result,) = coordinator.send(DeleteGroupsRequest([group.name])).results
    check(result.error_code, f"the group {visible(group.name)}")
    before = {place(each): known.offset for each, known in group.committed.items()}
    return Done(
        f"Deleted the group {visible(group.name)}.", f"/{noun_of(group)}", {"group": group.name, "before": before}
    )
