"""Checks topics: replicas, retention, compaction, timestamps, names."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import Final

from ottla.doctor.authors import set_by
from ottla.doctor.finding import Check, Finding, Severity
from ottla.doctor.replicas import last_departure, left_why
from ottla.doctor.snapshot import Evidence, Partition, Topic
from ottla.doctor.words import count, duration, names, size

GRACE_MS: Final = 5 * 60_000
"""How late retention may be: brokers look for old segments every five minutes (log.retention.check.interval.ms)."""
FUTURE_MS: Final = 3_600_000
"""A timestamp may be this far ahead: Kafka's own limit for new records (log.message.timestamp.after.max.ms)."""
SECONDS_BELOW_MS: Final = 100_000_000_000
"""A timestamp below this, in 1973, was written in seconds."""
NAME_MIN: Final = 5
"""Shorter names differ by two characters too easily."""
EMPTY_MAX: Final = 100
"""Empty topics that are compared with the others."""
COMPACTABLE: Final = 100_000
"""Records from which on it is worth a note that none of them was compacted."""


def offline(evidence: Evidence) -> Iterator[Finding]:
    """Partitions without a leader."""
    for topic in evidence.last.topics:
        found = [each for each in topic.partitions if each.leader < 0]
        if found:
            nodes = sorted({node for each in found for node in each.isr or each.replicas})
            yield Finding(
                Severity.DATA_AT_RISK,
                topic.name,
                f"{_partitions(topic, found)} has no leader: no client can read or write it.",
                f"start node {names(nodes)}; `ottla cluster describe` shows what is missing",
            )


def too_few_in_sync(evidence: Evidence) -> Iterator[Finding]:
    """Partitions that refuse acks=all. A partition with fewer replicas than min.insync.replicas needs all of them
    (Kafka's Partition.effectiveMinIsr)."""
    for topic in evidence.last.topics:
        needed = topic.number("min.insync.replicas") or 1
        refusing = [each for each in topic.partitions if each.leader >= 0 and len(each.isr) < _needed(each, needed)]
        if refusing:
            missing = sorted({node for each in refusing for node in each.replicas if node not in each.isr})
            first = refusing[0]
            yield Finding(
                Severity.WARNING,
                topic.name,
                f"{_partitions(topic, refusing)} refuses acks=all (NOT_ENOUGH_REPLICAS): {len(first.isr)} of "
                f"{count(len(first.replicas), 'replica')} in sync, and it needs {_needed(first, needed)}."
                + set_by(evidence, topic, "min.insync.replicas"),
                f"start node {names(missing)}, or wait until it has caught up",
            )


def _needed(partition: Partition, needed: int) -> int:
    return min(needed, len(partition.replicas))


def one_failure_away(evidence: Evidence) -> Iterator[Finding]:
    """Topics that stop accepting acks=all, or lose records, when one node fails, on a cluster that could do better."""
    if len(evidence.last.nodes) < 3:
        return
    for topic in evidence.last.topics:
        needed = topic.number("min.insync.replicas") or 1
        least = min((len(each.replicas) for each in topic.partitions), default=0)
        if least == 1:
            yield Finding(
                Severity.WARNING,
                topic.name,
                f"{topic.name} has one replica, on a cluster of {len(evidence.last.nodes)} nodes: if its node fails, "
                "its records are unavailable, and if the disk fails, they are lost.",
                f"ottla topics reassign {topic.name} --replication-factor 3 --execute",
            )
        elif 1 < least <= needed:
            yield Finding(
                Severity.NOTE,
                topic.name,
                f"{topic.name} refuses acks=all as soon as one node is down: it has {least} replicas, and "
                f"min.insync.replicas is {needed}." + set_by(evidence, topic, "min.insync.replicas"),
                f"ottla topics reassign {topic.name} --replication-factor {needed + 1} --execute",
            )


def few_replicas(evidence: Evidence) -> Iterator[Finding]:
    """Partitions with fewer replicas than others of their topic, and topics that were adopted from fewer logs than a
    new topic gets replicas: their configs show that, or they are the cluster's own."""
    usual = min(evidence.last.replicas_of_new, len(evidence.last.nodes))
    for topic in evidence.last.topics:
        is_adopted = topic.is_internal or topic.configs.get("ottla.retention.hold") == "true"
        counts = [len(each.replicas) for each in topic.partitions]
        wanted = max([*counts, usual if is_adopted else 0], default=0)
        few = [each for each in topic.partitions if len(each.replicas) < wanted]
        if few:
            why = "a new topic gets" if max(counts) < wanted else "other partitions have"
            yield Finding(
                Severity.WARNING,
                topic.name,
                f"{_partitions(topic, few)} has {count(min(counts), 'replica')}, and {why} {wanted}. A topic that was "
                "adopted from its logs keeps only the replicas whose logs were found.",
                f"ottla topics reassign {topic.name} --replication-factor {wanted} --execute",
            )


def replica_behind(evidence: Evidence) -> Iterator[Finding]:
    """Replicas that are out of sync, with how fast they catch up."""
    before = evidence.first.places()
    rows: dict[int, list[tuple[Topic, Partition, int, float | None]]] = {}
    for topic, partition in evidence.last.partitions():
        for node in set(partition.replicas) - set(partition.isr):
            behind = _behind(partition, node)
            if behind is None:
                continue
            earlier = before.get((topic.name, partition.index))
            earlier_behind = None if earlier is None else _behind(earlier, node)
            gain = None
            if earlier_behind is not None and evidence.window_s > 0:
                gain = (earlier_behind - behind) / evidence.window_s
            rows.setdefault(node, []).append((topic, partition, behind, gain))
    for node, found in sorted(rows.items()):
        behind = sum(row[2] for row in found)
        gains = [row[3] for row in found]
        gain = None if None in gains else sum(each for each in gains if each is not None)
        if gain is None:
            when = "how fast it catches up is unknown"
        elif gain <= 0:
            when = "it does not catch up"
        else:
            when = f"it gains {gain:,.0f} records/s and needs {duration(behind / gain)}"
        where = names(f"{topic.name}-{partition.index}" for topic, partition, _, _ in found)
        left = last_departure(evidence.last, node)
        why = "" if left is None else f" It left {_ago(evidence, left.at_ms)}: {left_why(left)}."
        yield Finding(
            Severity.WARNING,
            f"node {node}",
            f"Node {node} is {count(behind, 'record')} behind in {where}: {when}.{why}",
            "check that node's log and disk; `ottla cluster describe` shows its state",
        )


def unclean_election(evidence: Evidence) -> Iterator[Finding]:
    """Topics that may elect a leader without acknowledged records."""
    for topic in evidence.last.topics:
        if topic.configs.get("unclean.leader.election.enable") == "true" and not topic.is_internal:
            yield Finding(
                Severity.NOTE,
                topic.name,
                f"{topic.name} may elect a replica that is not in sync: then acknowledged records are lost."
                + set_by(evidence, topic, "unclean.leader.election.enable"),
                f"ottla topics alter {topic.name} --set unclean.leader.election.enable=false",
            )


def misspelt(evidence: Evidence) -> Iterator[Finding]:
    """Empty topics whose name is almost that of a topic in use, as auto-creation makes them from a typo."""
    used = [each.name for each in evidence.last.topics if each.end and not each.is_internal]
    empty = [each for each in evidence.last.topics if each.end == 0 and not (each.set_configs or each.is_internal)]
    for topic in empty[:EMPTY_MAX]:
        for name in used:
            if _alike(topic.name, name):
                yield Finding(
                    Severity.NOTE,
                    topic.name,
                    f"The empty topic {topic.name} may be a misspelling of {name}.",
                    f"`ottla topics delete {topic.name}`; auto.create.topics.enable=false prevents the next one",
                    "the programs that use it",
                )
                break


def retention_is_late(evidence: Evidence) -> Iterator[Finding]:
    """Records that are older than retention.ms allows."""
    now = evidence.last.at_ms
    for topic, partition in evidence.last.partitions():
        keep, roll = topic.number("retention.ms"), topic.number("segment.ms")
        if "delete" not in topic.configs.get("cleanup.policy", "") or keep is None or keep < 0 or roll is None:
            continue
        oldest = partition.oldest_ms
        if oldest is None or not SECONDS_BELOW_MS < oldest < now - keep - roll - GRACE_MS:
            continue
        yield Finding(
            Severity.WARNING,
            topic.name,
            f"{topic.name}-{partition.index} still holds records that are {duration((now - oldest) / 1000)} old: "
            f"retention.ms is {duration(keep / 1000)}, and a segment is closed after {duration(roll / 1000)}."
            + set_by(evidence, topic, "retention.ms", "segment.ms"),
            "a record with a timestamp in the future keeps its segment: check the newest timestamps of the partition",
        )


def times_in_the_future(evidence: Evidence) -> Iterator[Finding]:
    """Timestamps in the future, or in seconds instead of milliseconds."""
    now = evidence.last.at_ms
    for topic in evidence.last.topics:
        if topic.is_internal or "delete" not in topic.configs.get("cleanup.policy", "delete"):
            continue
        newest = max((each.newest_ms for each in topic.partitions if each.newest_ms is not None), default=None)
        if newest is None or newest < 0:
            continue
        if newest > now + FUTURE_MS:
            yield Finding(
                Severity.WARNING,
                topic.name,
                f"{topic.name} has a record with a timestamp {duration((newest - now) / 1000)} in the future: "
                "retention keeps its segment until then.",
                f"correct the producer's clock or unit; `ottla topics alter {topic.name} --set "
                "message.timestamp.type=LogAppendTime` uses the broker's time",
            )
        elif newest < SECONDS_BELOW_MS:
            yield Finding(
                Severity.DATA_AT_RISK if (topic.number("retention.ms") or -1) >= 0 else Severity.WARNING,
                topic.name,
                f"{topic.name} has timestamps in seconds instead of milliseconds: retention considers its "
                "records decades old, and deletes them.",
                "correct the producer; timestamps are milliseconds since 1970",
            )


def compaction_waits(evidence: Evidence) -> Iterator[Finding]:
    """Compacted topics whose only segment is still open."""
    now = evidence.last.at_ms
    for topic in evidence.last.topics:
        segment_bytes, roll = topic.number("segment.bytes"), topic.number("segment.ms")
        if "compact" not in topic.configs.get("cleanup.policy", "") or segment_bytes is None or roll is None:
            continue
        waiting = [
            each
            for each in topic.partitions
            if each.size is not None
            and each.size < segment_bytes
            and each.end is not None
            and each.start is not None
            and each.end - each.start >= COMPACTABLE
            and each.oldest_ms is not None
            and now - each.oldest_ms < roll
        ]
        if waiting and not topic.is_internal:
            yield Finding(
                Severity.NOTE,
                topic.name,
                f"{_partitions(topic, waiting)} is not compacted yet: compaction skips the open segment, which "
                f"is closed at {size(segment_bytes)} or after {duration(roll / 1000)}."
                + set_by(evidence, topic, "segment.bytes", "segment.ms"),
                f"ottla topics alter {topic.name} --set segment.ms=3600000",
            )


def _ago(evidence: Evidence, at_ms: int) -> str:
    return f"the in-sync replicas {duration(max(0, evidence.last.at_ms - at_ms) / 1000)} ago"


def _behind(partition: Partition, node: int) -> int | None:
    """Records by which a replica trails the leader; None if one of the ends is unknown."""
    end = partition.ends.get(node)
    return None if end is None or partition.end is None else max(0, partition.end - end)


def _partitions(topic: Topic, found: list[Partition]) -> str:
    """Partitions of a topic; its name alone if all are meant."""
    if len(found) == len(topic.partitions) > 1:
        return topic.name
    return names(f"{topic.name}-{each.index}" for each in found)


def _alike(one: str, other: str) -> bool:
    """Whether two names differ by at most two characters, which are not digits: those number topics."""
    if min(len(one), len(other)) < NAME_MIN or abs(len(one) - len(other)) > 2 or len(set(one) ^ set(other)) > 4:
        return False
    if _without_digits(one) == _without_digits(other):
        return False
    matched = sum(block.size for block in SequenceMatcher(None, one, other, autojunk=False).get_matching_blocks())
    return max(len(one), len(other)) - matched <= 2


def _without_digits(name: str) -> str:
    return "".join(each for each in name if not each.isdigit())


CHECKS: Final = (
    Check("offline-partition", "partitions without a leader", offline),
    Check("too-few-in-sync", "partitions that refuse acks=all", too_few_in_sync),
    Check("one-failure-away", "topics that one failed node stops", one_failure_away),
    Check("few-replicas", "topics that lack replicas since they were adopted from logs", few_replicas),
    Check("replica-behind", "replicas that are out of sync", replica_behind),
    Check("unclean-election", "topics that may lose acknowledged records in an election", unclean_election),
    Check("misspelt-topic", "empty topics with almost the name of another", misspelt),
    Check("retention-late", "records that retention should have deleted", retention_is_late),
    Check("wrong-timestamps", "timestamps in the future, or in seconds", times_in_the_future),
    Check("compaction-waits", "compacted topics whose only segment is open", compaction_waits),
)
