"""Decides where an archive begins: its checkpoint and its table must agree; without a checkpoint, the table decides.

Invariant: no start leaves a gap after the table's last offset, and none archives an offset twice. Otherwise the start
is refused, with a sentence that says what to do.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ottla.client import TopicPartition
from ottla.client.client import EARLIEST
from ottla.spark.archive.names import MadeAgainError
from ottla.spark.archive.table import Table
from ottla.spark.platform.failures import PipelineFailedError
from ottla.spark.reader.offsets import Cluster
from ottla.spark.reader.options import stream_options
from ottla.spark.running.checkpoints import Checkpoint
from ottla.spark.running.run import RunOptions, source_options


@dataclass(frozen=True, slots=True)
class Start:
    """Where batch 0 begins, and a message to the user if that differs from the request."""

    offsets: Mapping[TopicPartition, int]
    said: str = ""


def decide(
    options: RunOptions,
    topics: Sequence[str] | re.Pattern[str],
    starting: str,
    table: Table,
    checkpoint: Checkpoint,
    *,
    allow_loss: bool = False,
) -> Start:
    """Decide where to begin, and store it in a new checkpoint. Raises PipelineFailedError if checkpoint and table
    disagree."""
    cluster = Cluster(stream_options(source_options(options, topics, startingOffsets=starting)))
    try:
        said = go_on_with_others(cluster, table, checkpoint, allow_loss)
        if checkpoint.ends(-1) is not None:
            begun = agreed(table, checkpoint)
            return Start({place: begun.get(place, EARLIEST) for place in cluster.places(begun)})
        if checkpoint.last() >= 0:
            raise PipelineFailedError(
                f"The checkpoint {checkpoint.path} is not an archive's, or has lost a file. Give another --checkpoint: "
                "the archive continues from the end of its table."
            )
        wanted = cluster.resolve(cluster.options.starting, "startingOffsets")
        known = {place: end for place in wanted if (end := table.archived_to(place)) is not None}
        topics_known = topics_of(table, wanted)
        young = cluster.earliest([each for each in wanted if each[0] in topics_known and each not in known])
        if not allow_loss:
            refuse_loss(cluster, known, table)
        offsets = {**wanted, **young, **known}
    finally:
        cluster.close()
    checkpoint.begin(offsets)
    if not known:
        return Start(offsets, said)
    ends = ", ".join(f"{topic}-{partition} at {end}" for (topic, partition), end in sorted(known.items())[:4])
    more = f" and {len(known) - 4} more partitions" if len(known) > 4 else ""
    new = "" if said else "The checkpoint is new, the table is not: "
    return Start(offsets, f"{said}{new}going on where {'the others end' if said else 'it ends'}, {ends}{more}.")


def go_on_with_others(cluster: Cluster, table: Table, checkpoint: Checkpoint, allow_loss: bool) -> str:
    """Give recreated topics new names, and put the old topics' checkpoint aside; return what was done, as a sentence.
    Raises MadeAgainError if that is not allowed."""
    known = {place: end for place in cluster.places() if (end := table.archived_to(place)) is not None}
    ends = cluster.latest(known)
    ids = cluster.topic_ids(sorted({topic for topic, _ in ends}))
    cut = {place[0] for place, end in known.items() if ends.get(place, end) < end}
    others = sorted(topic for topic in ids if topic in cut or table.names.is_another(topic, ids[topic]))
    if not others:
        return ""
    if not allow_loss:
        raise MadeAgainError(others, table.names)
    checkpoint.put_aside()
    for topic in others:
        table.names.add(topic, ids[topic])
    told = ", ".join(f"{topic} was created again: it is {table.names.called(topic)} in the table" for topic in others)
    return f"{told}. "


def topics_of(table: Table, places: Collection[TopicPartition]) -> set[str]:
    """The topics of these partitions of the log of which the table has something, or that came after one it has."""
    there = {name for name, _ in table.places()}
    return {topic for topic, _ in places if table.names.called(topic) in there or len(table.names.ids(topic)) > 1}


def agreed(table: Table, checkpoint: Checkpoint) -> Mapping[TopicPartition, int]:
    """Return the beginning of batch 0, after checking that checkpoint and table belong to one archive. The table must
    be at the end of the last planned batch, or at its beginning: then Spark repeats the batch. Raises
    PipelineFailedError."""
    begun = checkpoint.ends(-1) or {}
    last = checkpoint.last()
    if last < 0:
        return begun
    end = checkpoint.ends(last) or {}
    start = checkpoint.ends(last - 1) or {}
    for place, until in sorted(end.items()):
        archived = table.archived_to(place)
        first = start.get(place, 0)
        if archived is None and first == begun.get(place, 0):
            continue  # nothing of it was archived before the last batch, and that is done again
        if archived not in (first, until):
            raise PipelineFailedError(disagreement(table, checkpoint, place, first, archived))
    return begun


def disagreement(table: Table, checkpoint: Checkpoint, place: TopicPartition, first: int, archived: int | None) -> str:
    topic, partition = place
    ends = "has nothing of it" if archived is None else f"ends at {archived}"
    return (
        f"The checkpoint {checkpoint.path} continues at offset {first} of {topic}-{partition}, but the table "
        f"{table.path} {ends}: they do not belong together, or one is an old copy. Give another --checkpoint: "
        "the archive then continues from the end of the table."
    )


def refuse_loss(cluster: Cluster, known: Mapping[TopicPartition, int], table: Table) -> None:
    """Raise PipelineFailedError if the log has lost offsets that the table needs next; continuing would hide the
    loss."""
    gone = [
        f"{topic}-{partition} from {known[topic, partition]} to {first - 1}"
        for (topic, partition), first in sorted(cluster.earliest(known).items())
        if first > known[topic, partition]
    ]
    if gone:
        raise PipelineFailedError(
            f"The log no longer holds what the table {table.path} needs next: {', '.join(gone)}. `--allow-loss` "
            "continues without it, and the archive records what is missing."
        )
