"""Counts the records in the dead-letter topics of many share groups by their offsets, without reading any."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from ottla.client.client import EARLIEST, LATEST, Client
from ottla.client.dead_letters import DEAD_LETTERS, OFFSETS_BY_NAME, REDRIVE_PREFIX, Progress
from ottla.client.errors import BrokerError, ClientError
from ottla.client.offsets import offsets_requests
from ottla.client.read_together import InVersions, Question, read_together
from ottla.console.page import Context
from ottla.console.reading import leaders_of, offsets_in, with_leader
from ottla.console.worker_reasons import cut
from ottla.doctor.groups import OFFSETS_OF_MANY
from ottla.doctor.snapshot import SHARE, Snapshot, TopicPartition
from ottla.escaping import visible
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics


@dataclass(frozen=True, slots=True)
class InTopic:
    """How many records the dead-letter topic of a group holds, of all groups that use it, and how many of them the
    group's redrives sent back."""

    records: int
    sent_back: int


@dataclass(frozen=True, slots=True)
class NotSentBack:
    """A share group whose dead-letter topic holds records that were not sent back. `is_shared`: other groups use the
    topic too, so some of the records may be theirs. `reason`: the most common one that members of the group gave of
    late, "" if none is known."""

    group: str
    waiting: int
    is_shared: bool
    reason: str = ""


def not_sent_back(snapshot: Snapshot) -> tuple[NotSentBack, ...]:
    """The share groups of a snapshot with dead letters that were not sent back, those with most first. It asks the
    cluster for nothing."""
    topics = {
        each.name: topic for each in snapshot.groups if each.type == SHARE and (topic := each.configs.get(DEAD_LETTERS))
    }
    users, groups = Counter(topics.values()), snapshot.groups_by_name()
    bounds: dict[str, dict[TopicPartition, tuple[int, int]]] = {}
    for place, part in snapshot.places().items():
        if place[0] in users and part.start is not None and part.end is not None:
            bounds.setdefault(place[0], {})[place] = part.start, part.end
    found: list[NotSentBack] = []
    for name, topic in topics.items():
        redrive = groups.get(f"{REDRIVE_PREFIX}{name}")
        done = {} if redrive is None else redrive.committed
        waiting = 0
        for place, (start, end) in bounds.get(topic, {}).items():
            at = done.get(place)
            progress = Progress(0) if at is None else Progress.of(at.offset, at.metadata)
            waiting += progress.left(start, end)
        if waiting:
            found.append(NotSentBack(name, waiting, users[topic] > 1, cut(groups[name].reason)))
    return tuple(sorted(found, key=lambda each: (-each.waiting, each.group)))


def letters_in_topics(
    context: Context, topics: Mapping[str, str], redrivers: Mapping[str, int], unseen: list[str]
) -> dict[str, InTopic]:
    """The records in the dead-letter topics of groups, by group: one request for the topics, and one to each node of
    Ottla. A group whose topic could not be asked is missing.

    `topics`: the dead-letter topic of each group. `redrivers`: the nodes that coordinate consumer groups, by group; of
    a group whose redrives are not among them, none is known to have been sent back.
    """
    if not topics:
        return {}
    described = context.client.metadata(sorted(set(topics.values()))).topics
    known: dict[str, list[int]] = {}
    for topic in described:
        if not topic.error_code:
            known[topic.name] = [each.partition_index for each in topic.partitions]
        elif topic.error_code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION):
            known[topic.name] = []
        else:
            unseen.append(f"Dead letters: {BrokerError(topic.error_code, f'topic {visible(topic.name)}')}")
    leaders = with_leader(leaders_of(each for each in described if not each.error_code))
    asked: dict[int, dict[Hashable, Question]] = {}
    for time_ms in (EARLIEST, LATEST):
        for node_id, request in offsets_requests(leaders, time_ms).items():
            asked.setdefault(node_id, {})[time_ms] = request
    for node_id, request in _progress_requests(topics, known, redrivers).items():
        asked.setdefault(node_id, {})[REDRIVE_PREFIX] = InVersions(request, OFFSETS_OF_MANY, OFFSETS_BY_NAME)
    answers = _answers(context.client, asked, unseen)
    lows, highs = (
        {place: at for each in answers[name] for place, at in offsets_in(each).items()} for name in (EARLIEST, LATEST)
    )
    progress = _progress(answers[REDRIVE_PREFIX])
    found: dict[str, InTopic] = {}
    for group, topic in topics.items():
        places = [(topic, index) for index in known.get(topic, ())]
        if topic not in known or not all(place in lows and place in highs for place in places):
            continue
        done = progress.get(group, {})
        records = sum(highs[place] - lows[place] for place in places)
        left = sum(done.get(place[1], Progress(0)).left(lows[place], highs[place]) for place in places)
        found[group] = InTopic(records, records - left)
    return found


def _progress_requests(
    topics: Mapping[str, str], partitions: Mapping[str, list[int]], redrivers: Mapping[str, int]
) -> dict[int, OffsetFetchRequest]:
    """Asks each node for the progress of the redrives that it coordinates."""
    by_node: dict[int, list[OffsetFetchRequestGroup]] = {}
    for group, topic in topics.items():
        name = f"{REDRIVE_PREFIX}{group}"
        if name in redrivers and partitions.get(topic):
            rows = [OffsetFetchRequestTopics(topic, partition_indexes=partitions[topic])]
            by_node.setdefault(redrivers[name], []).append(OffsetFetchRequestGroup(name, topics=rows))
    return {node_id: OffsetFetchRequest(groups=groups) for node_id, groups in by_node.items()}


def _answers(
    client: Client, asked: Mapping[int, Mapping[Hashable, Question]], unseen: list[str]
) -> dict[Hashable, list[Any]]:
    """The answers of all nodes to each question."""
    found: dict[Hashable, list[Any]] = {EARLIEST: [], LATEST: [], REDRIVE_PREFIX: []}
    for node_id, answers in read_together(client, {each: list(asked[each].values()) for each in asked}).items():
        for name, answer in zip(asked[node_id], answers, strict=True):
            if not isinstance(answer, ClientError):
                found[name].append(answer)
            elif (sentence := f"Dead letters on node {node_id}: {answer}") not in unseen:
                unseen.append(sentence)
    return found


def _progress(answers: list[Any]) -> dict[str, dict[int, Progress]]:
    """The progress of redrives, by share group and partition."""
    return {
        group.group_id.removeprefix(REDRIVE_PREFIX): {
            part.partition_index: Progress.of(part.committed_offset, part.metadata)
            for topic in group.topics
            for part in topic.partitions
            if not part.error_code and part.committed_offset >= 0
        }
        for answer in answers
        for group in answer.groups
        if not group.error_code
    }
