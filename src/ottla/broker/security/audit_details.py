"""Describes what a request changes, for the audit log: names only, never values, which may be secrets.

A new kind of request without a description here is recorded with its name alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from itertools import islice
from typing import Any, Final

from ottla.protocol.acls import Operation, PatternType, PermissionType, ResourceType
from ottla.protocol.apis import ApiKey

DETAILS_MAX: Final = 100
"""How many of the things that one request names are listed."""
_CONFIG_RESOURCES: Final = {2: "TOPIC", 4: "BROKER", 8: "BROKER_LOGGER", 16: "CLIENT_METRICS", 32: "GROUP"}
_SIGNS: Final = {0: "", 1: "-", 2: "+=", 3: "-="}
"""The sign before the name of a property, by AlterConfigOp."""
_MECHANISMS: Final = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}


def details_of(api_key: int, body: Any) -> list[str]:
    """The names of the things that a request changes. At most DETAILS_MAX entries, and one about the others."""
    describe = _DETAILS.get(api_key)
    if describe is None:
        return []
    names = describe(body)
    listed = list(islice(names, DETAILS_MAX))
    more = sum(1 for _ in names)
    return [*listed, f"and {more} more"] if more else listed


def _named(kind: type[IntEnum], code: int) -> str:
    try:
        return kind(code).name
    except ValueError:
        return "ANY" if code == 1 else str(code)


def _topics(body: Any) -> Iterable[str]:
    for topic in body.topics:
        yield topic.name


def _deleted_topics(body: Any) -> Iterable[str]:
    yield from body.topic_names
    for topic in body.topics:
        yield bytes(topic.topic_id).hex() if topic.name is None else topic.name


def _partitions(body: Any) -> Iterable[str]:
    for topic in body.topics:
        yield f"{topic.name} to {topic.count} partitions"


def _records(body: Any) -> Iterable[str]:
    for topic in body.topics:
        for partition in topic.partitions:
            yield f"{topic.name}-{partition.partition_index} before {partition.offset}"


def _configs(body: Any) -> Iterable[str]:
    for resource in body.resources:
        kind = _CONFIG_RESOURCES.get(resource.resource_type, str(resource.resource_type))
        for config in resource.configs:
            sign = _SIGNS.get(getattr(config, "config_operation", 0), "")
            yield f"{kind} {resource.resource_name}: {sign}{config.name}"


def _created_acls(body: Any) -> Iterable[str]:
    for acl in body.creations:
        yield (
            f"{_named(PermissionType, acl.permission_type)} {acl.principal} from {acl.host}: "
            f"{_named(Operation, acl.operation)} on {_named(ResourceType, acl.resource_type)} "
            f"{_named(PatternType, acl.resource_pattern_type)} {acl.resource_name}"
        )


def _deleted_acls(body: Any) -> Iterable[str]:
    for each in body.filters:
        pattern = "MATCH" if each.pattern_type_filter == 2 else _named(PatternType, each.pattern_type_filter)
        yield (
            f"{_named(PermissionType, each.permission_type)} {_or_any(each.principal_filter)} "
            f"from {_or_any(each.host_filter)}: {_named(Operation, each.operation)} on "
            f"{_named(ResourceType, each.resource_type_filter)} {pattern} {_or_any(each.resource_name_filter)}"
        )


def _or_any(text: str | None) -> str:
    return "ANY" if text is None else text


def _users(body: Any) -> Iterable[str]:
    for user in body.deletions:
        yield f"-{user.name} {_MECHANISMS.get(user.mechanism, str(user.mechanism))}"
    for user in body.upsertions:
        yield f"{user.name} {_MECHANISMS.get(user.mechanism, str(user.mechanism))}"


def _quotas(body: Any) -> Iterable[str]:
    for entry in body.entries:
        entity = ", ".join(f"{each.entity_type} {each.entity_name or '<default>'}" for each in entry.entity)
        for change in entry.ops:
            yield f"{entity}: {'-' if change.remove else ''}{change.key}"


def _groups(body: Any) -> Iterable[str]:
    yield from body.groups_names


def _group(body: Any) -> Iterable[str]:
    yield body.group_id


def _features(body: Any) -> Iterable[str]:
    for feature in body.feature_updates:
        yield f"{feature.feature} to level {feature.max_version_level}"


def _nodes(body: Any) -> Iterable[str]:
    yield f"node {body.broker_id}"


def _moved(body: Any) -> Iterable[str]:
    for topic in body.topics:
        for partition in topic.partitions:
            yield f"{topic.name}-{partition.partition_index} to {partition.replicas or 'no other nodes'}"


_DETAILS: Final[Mapping[int, Callable[[Any], Iterable[str]]]] = {
    ApiKey.CREATE_TOPICS: _topics,
    ApiKey.DELETE_TOPICS: _deleted_topics,
    ApiKey.CREATE_PARTITIONS: _partitions,
    ApiKey.DELETE_RECORDS: _records,
    ApiKey.ALTER_CONFIGS: _configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _configs,
    ApiKey.CREATE_ACLS: _created_acls,
    ApiKey.DELETE_ACLS: _deleted_acls,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _users,
    ApiKey.ALTER_CLIENT_QUOTAS: _quotas,
    ApiKey.DELETE_GROUPS: _groups,
    ApiKey.OFFSET_DELETE: _group,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: _group,
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: _group,
    ApiKey.UPDATE_FEATURES: _features,
    ApiKey.UNREGISTER_BROKER: _nodes,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _moved,
}
"""By API key: the names in a request's body."""
