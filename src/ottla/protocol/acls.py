"""Lists the operations, resource types, patterns and permission types of access control, with their codes on the wire.

Sources: Kafka's AclOperation.java, ResourceType.java, PatternType.java, AclPermissionType.java; KIP-11, KIP-140,
KIP-290.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, TypeAlias


class Operation(IntEnum):
    """Kafka's AclOperation codes."""

    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class ResourceType(IntEnum):
    """Kafka's ResourceType codes."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """Kafka's PatternType codes that an ACL may have. A LITERAL pattern of the name `*` matches every name."""

    LITERAL = 3
    PREFIXED = 4


class PermissionType(IntEnum):
    """Kafka's AclPermissionType codes that an ACL may have."""

    DENY = 2
    ALLOW = 3


CLUSTER_NAME: Final = "kafka-cluster"
"""The name of the one resource of type CLUSTER."""
UNKNOWN: Final = 0
"""In a request: a code that this version of the protocol does not define."""
ANY: Final = 1
"""In a filter: every operation, resource type, pattern type or permission type."""
MATCH: Final = 2
"""In a filter: the pattern type for all patterns that match the name."""

Permission: TypeAlias = tuple[Operation, ResourceType]
"""An operation on resources of a type."""
