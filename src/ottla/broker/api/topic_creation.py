"""Checks whether a topic, or more partitions of one, may be created: in Kafka's order with Kafka's messages.

It checks what a request may ask of the registered nodes. It returns a `NewTopic` for `Topics.creating`, or raises
`TopicRefusedError`.

Source: Kafka's ReplicationControlManager.java (validateNewTopicNames, createTopic, createPartitions),
ControllerApis.scala; the limit of partitions per request is its MAX_PARTITIONS_PER_BATCH.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from ottla.broker.config.values import ConfigRefusedError, check_topic
from ottla.broker.topics.new_topic import NewTopic, new_internal
from ottla.metadata.topic_names import FORBIDDEN, INTERNAL_TOPICS, fault_of
from ottla.metadata.topics import TopicImage
from ottla.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.broker.core import Core

PARTITIONS_PER_REQUEST_MAX: Final = 10_000
USE_DEFAULT: Final = -1


class TopicRefusedError(Exception):
    """A topic change that is impossible, with the error for the client."""

    def __init__(self, error_code: ErrorCode, sentence: str | None = None) -> None:
        super().__init__(sentence or error_code.message)
        self.error_code = error_code
        self.sentence = sentence


def plan_topic(
    node: Core,
    name: str,
    partitions: int,
    replication_factor: int,
    assignments: Sequence[tuple[int, Sequence[int]]],
    configs: Iterable[tuple[str, str | None]],
) -> NewTopic:
    """The topic this asks for. `assignments` are (partition, broker ids). Raises TopicRefusedError."""
    check_name(node, name)
    overrides: dict[str, str] = {}
    for key, value in configs:
        if value is None:
            raise TopicRefusedError(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {key}")
        overrides[key] = value
    try:
        check_topic(overrides, node.settings)
    except ConfigRefusedError as refused:
        raise TopicRefusedError(ErrorCode.INVALID_CONFIG, str(refused)) from refused
    if assignments:
        assigned = _assigned(node, partitions, replication_factor, assignments)
        check_room(node, len(assigned))
        return NewTopic(name, len(assigned), overrides, None, len(assigned[0]), assigned)
    count, factor = _counted(node, partitions, replication_factor)
    check_room(node, count)
    return NewTopic(name, count, overrides, None, factor)


def plan_default_topic(node: Core, name: str) -> NewTopic:
    """The topic that a request for an unknown name creates. Raises TopicRefusedError."""
    check_name(node, name)
    if name in INTERNAL_TOPICS:
        new = new_internal(node.settings, name)
        check_room(node, new.partitions)
        return new
    return plan_topic(node, name, USE_DEFAULT, USE_DEFAULT, (), ())


def check_name(node: Core, name: str) -> None:
    """Raise TopicRefusedError if no topic of this name can be created."""
    if name in FORBIDDEN:
        raise TopicRefusedError(ErrorCode.INVALID_REQUEST, f"Creation of internal topic {name} is prohibited.")
    fault = fault_of(name)
    if fault is not None:
        raise TopicRefusedError(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
    if name in node.image.topics:
        raise TopicRefusedError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    other = node.topics.colliding_with(name)
    if other is not None:
        raise TopicRefusedError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {other}"
        )


def check_request_size(partitions: int) -> None:
    """Raise TopicRefusedError if one request asks for too many partitions in all."""
    if partitions > PARTITIONS_PER_REQUEST_MAX:
        raise TopicRefusedError(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")


def check_room(node: Core, more: int) -> None:
    """Raise TopicRefusedError if the node would have too many partitions."""
    check_request_size(more)
    limit = node.settings["ottla.partitions.max"]
    have = node.image.partition_count
    if have + more > limit:
        raise TopicRefusedError(
            ErrorCode.POLICY_VIOLATION,
            f"The node holds {have} partitions and may hold {limit} (ottla.partitions.max); {more} more are too many.",
        )


def plan_growth(node: Core, topic: TopicImage, total: int, assignments: Sequence[Sequence[int]] | None) -> int:
    """How many partitions the topic shall have. Raises TopicRefusedError."""
    have = len(topic.partitions)
    if total == have:
        raise TopicRefusedError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {have} partition(s).")
    if total < have:
        raise TopicRefusedError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {topic.name} currently has {have} partition(s); {total} would not be an increase.",
        )
    added, factor = total - have, len(topic.partitions[0].target)
    if assignments is not None:
        if len(assignments) != added:
            raise TopicRefusedError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Attempted to add {added} additional partition(s), but only {len(assignments)} assignment(s) "
                "were specified.",
            )
        for index, brokers in enumerate(assignments, start=have):
            check_brokers(node, brokers, factor)
            check_active(node, index, brokers)
    elif not node.members.is_alone:
        check_factor(node, factor)
    check_room(node, added)
    return total


def _counted(node: Core, partitions: int, replication_factor: int) -> tuple[int, int]:
    """How many partitions, and how many replicas of each."""
    if replication_factor == 0 or replication_factor < USE_DEFAULT:
        raise TopicRefusedError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if partitions == 0 or partitions < USE_DEFAULT:
        raise TopicRefusedError(
            ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value."
        )
    wanted = node.settings["default.replication.factor"] if replication_factor == USE_DEFAULT else replication_factor
    check_factor(node, wanted)
    return node.settings["num.partitions"] if partitions == USE_DEFAULT else partitions, wanted


def check_factor(node: Core, wanted: int) -> None:
    """Raise TopicRefusedError if a partition can't have this many replicas. Nodes that are down count, but one must
    lead."""
    active, down = (1, 0) if node.members.is_alone else (len(node.members.active()), len(node.members.down()))
    why = None
    if not active:
        why = "All brokers are currently fenced."
    elif wanted > active + down:
        why = (
            f"The target replication factor of {wanted} cannot be reached because only {active + down} broker(s) are "
            "registered."
        )
    if why is not None:
        raise TopicRefusedError(
            ErrorCode.INVALID_REPLICATION_FACTOR, f"Unable to replicate the partition {wanted} time(s): {why}"
        )


def _assigned(
    node: Core, partitions: int, replication_factor: int, assignments: Sequence[tuple[int, Sequence[int]]]
) -> tuple[tuple[int, ...], ...]:
    """The replicas of each partition."""
    if replication_factor != USE_DEFAULT:
        raise TopicRefusedError(
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but replication factor was not set to -1.",
        )
    if partitions != USE_DEFAULT:
        raise TopicRefusedError(
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but numPartitions was not set to -1.",
        )
    by_partition: dict[int, Sequence[int]] = {}
    factor: int | None = None
    for index, brokers in assignments:
        if index in by_partition:
            raise TopicRefusedError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Found multiple manual partition assignments for partition {index}",
            )
        check_brokers(node, brokers, factor)
        check_active(node, index, brokers)
        factor = len(brokers)
        by_partition[index] = brokers
    if sorted(by_partition) != list(range(len(by_partition))):
        raise TopicRefusedError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions should be a consecutive 0-based integer sequence"
        )
    return tuple(tuple(by_partition[index]) for index in range(len(by_partition)))


def check_brokers(node: Core, brokers: Sequence[int], factor: int | None = None) -> None:
    """Raise TopicRefusedError unless a partition can have its replicas on these brokers: all are known, and there are
    `factor` of them if the topic's other partitions have so many."""
    if not brokers:
        raise TopicRefusedError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "The manual partition assignment includes an empty replica list."
        )
    in_order = sorted(brokers)
    for before, broker in zip((None, *in_order), in_order, strict=False):
        if not node.members.knows(broker):
            raise TopicRefusedError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"The manual partition assignment includes broker {broker}, but no such broker is registered.",
            )
        if broker == before:
            raise TopicRefusedError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"The manual partition assignment includes the broker {broker} more than once.",
            )
    if factor is not None and len(brokers) != factor:
        raise TopicRefusedError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"The manual partition assignment includes a partition with {len(brokers)} replica(s), but this is not "
            f"consistent with previous partitions, which have {factor} replica(s).",
        )


def check_active(node: Core, index: int, brokers: Sequence[int]) -> None:
    """Raise TopicRefusedError unless one of the brokers can lead the new partition."""
    if not node.members.is_alone and node.members.active().keys().isdisjoint(brokers):
        raise TopicRefusedError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"All brokers specified in the manual partition assignment for partition {index} are fenced or in "
            "controlled shutdown.",
        )
