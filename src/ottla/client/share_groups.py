"""Calls share groups' admin APIs (KIP-932), which confluent-kafka lacks: describe groups, read and change their
offsets.

Each function takes a `Client` and raises ClientError.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from ottla.client.client import Client
from ottla.client.errors import check
from ottla.protocol.config_resources import ConfigResourceType
from ottla.protocol.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from ottla.protocol.messages.delete_groups import DeleteGroupsRequest
from ottla.protocol.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
)
from ottla.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
)
from ottla.protocol.messages.list_groups import ListGroupsRequest
from ottla.protocol.messages.read_share_group_state import PartitionData, ReadShareGroupStateRequest, ReadStateData
from ottla.protocol.messages.share_group_describe import DescribedGroup, ShareGroupDescribeRequest
from ottla.protocol.uuids import uuid_text

SHARE = 2
"""The key type of a share coordinator."""
ARCHIVING = 3
"""The delivery state of a record whose dead letter is not written yet."""


PAUSED = "share.delivery.paused"
"""The config that pauses a share group. Only Ottla has it."""
PAUSE_CONFIGS = (PAUSED, f"{PAUSED}.since.ms", f"{PAUSED}.by")


class Pause(NamedTuple):
    """A paused share group: since when, in ms, and by whom, if the node has recorded it."""

    since_ms: int | None
    by: str | None


class ShareOffset(NamedTuple):
    """A group's position in one partition: -1 if the group has not read it yet, or if the lag is unknown."""

    topic: str
    partition: int
    start_offset: int
    lag: int


def group_configs(client: Client, groups: Sequence[str], names: Sequence[str]) -> dict[str, dict[str, str | None]]:
    """These configs of groups, by group and name. A group whose configs may not be seen is missing."""
    if not groups:
        return {}
    asked = DescribeConfigsRequest(
        [DescribeConfigsResource(ConfigResourceType.GROUP, group, list(names)) for group in groups]
    )
    return {
        result.resource_name: {each.name: each.value for each in result.configs}
        for result in client.send(asked).results
        if not result.error_code
    }


def pause_in(configs: Mapping[str, str | None]) -> Pause | None:
    """The pause in a group's configs PAUSE_CONFIGS; None if the group is not paused."""
    if configs.get(PAUSED) != "true":
        return None
    since = configs.get(f"{PAUSED}.since.ms") or ""
    return Pause(int(since) if since.isdigit() and int(since) else None, configs.get(f"{PAUSED}.by") or None)


def pauses_of(client: Client, groups: Sequence[str]) -> dict[str, Pause]:
    """The pauses of those groups that are paused."""
    found = {group: pause_in(configs) for group, configs in group_configs(client, groups, PAUSE_CONFIGS).items()}
    return {group: pause for group, pause in found.items() if pause is not None}


def list_share_groups(client: Client) -> list[tuple[str, str]]:
    """(group, state) of every share group, by name."""
    return list_groups(client, ["share"])


def list_groups(client: Client, types: Sequence[str] = ()) -> list[tuple[str, str]]:
    """(group, state) of every group of these types, by name; without types, of all groups."""
    client.metadata([])
    found: list[tuple[str, str]] = []
    for node_id in client.broker_ids():
        answer = client.broker(node_id).send(ListGroupsRequest([], list(types)))
        check(answer.error_code, "the list of groups")
        found += [(group.group_id, group.group_state) for group in answer.groups]
    return sorted(found)


def describe_share_group(client: Client, group: str) -> DescribedGroup:
    """The group's state, epochs, members and assignments. Raises BrokerError if there is no such share group."""
    (described,) = client.send_to_coordinator(group, ShareGroupDescribeRequest([group])).groups
    check(described.error_code, f"share group {group}", described.error_message)
    return described


def share_group_offsets(client: Client, group: str) -> list[ShareOffset]:
    """The offsets of every partition of the group, in order."""
    asked = DescribeShareGroupOffsetsRequest([DescribeShareGroupOffsetsRequestGroup(group, None)])
    (answer,) = client.send_to_coordinator(group, asked).groups
    check(answer.error_code, f"the offsets of share group {group}", answer.error_message)
    found: list[ShareOffset] = []
    for topic in answer.topics:
        for part in topic.partitions:
            check(part.error_code, f"the offset of {group} in {topic.topic_name}-{part.partition_index}")
            found.append(ShareOffset(topic.topic_name, part.partition_index, part.start_offset, part.lag))
    return sorted(found)


def records_archiving(client: Client, group: str) -> int:
    """How many records wait for their dead letter (state ARCHIVING, KIP-1191), according to the share coordinator.

    It sends the request of a broker, without a leader epoch, so it changes nothing; a cluster may not permit it.
    """
    topics: dict[str, list[int]] = {}
    for each in share_group_offsets(client, group):
        if each.start_offset >= 0:
            topics.setdefault(each.topic, []).append(each.partition)
    waiting = 0
    for name, partitions in topics.items():
        topic_id = client.known_topic(name).topic_id
        for partition in partitions:
            key = f"{group}:{uuid_text(topic_id)}:{partition}"
            asked = ReadShareGroupStateRequest(group, [ReadStateData(topic_id, [PartitionData(partition, -1)])])
            (result,) = client.coordinator(key, SHARE).send(asked).results
            (part,) = result.partitions
            check(part.error_code, f"the state of share group {group}", part.error_message)
            waiting += sum(
                run.last_offset - run.first_offset + 1 for run in part.state_batches if run.delivery_state == ARCHIVING
            )
    return waiting


def alter_share_group_offsets(client: Client, group: str, offsets: Sequence[tuple[str, int, int]]) -> None:
    """Set the offsets (topic, partition, offset) from which a group without members continues."""
    topics = [
        AlterShareGroupOffsetsRequestTopic(
            name, [AlterShareGroupOffsetsRequestPartition(partition, offset) for _, partition, offset in rows]
        )
        for name, rows in groupby(sorted(offsets), key=lambda each: each[0])
    ]
    answer = client.send_to_coordinator(group, AlterShareGroupOffsetsRequest(group, topics))
    check(answer.error_code, f"the offsets of share group {group}", answer.error_message)
    for topic in answer.responses:
        for part in topic.partitions:
            check(part.error_code, f"the offset of {group} in {topic.topic_name}-{part.partition_index}")


def delete_share_group_offsets(client: Client, group: str, topics: Iterable[str]) -> None:
    """Delete the offsets of these topics in a group without members."""
    asked = DeleteShareGroupOffsetsRequest(group, [DeleteShareGroupOffsetsRequestTopic(name) for name in topics])
    answer = client.send_to_coordinator(group, asked)
    check(answer.error_code, f"the offsets of share group {group}", answer.error_message)
    for topic in answer.responses:
        check(topic.error_code, f"the offsets of {group} in {topic.topic_name}", topic.error_message)


def delete_share_group(client: Client, group: str) -> None:
    """Delete a group without members, with its offsets."""
    (result,) = client.send_to_coordinator(group, DeleteGroupsRequest([group])).results
    check(result.error_code, f"share group {group}")
