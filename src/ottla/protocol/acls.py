"""Lists the operations and resource types of access control, with their codes on the wire.

Sources: Kafka's AclOperation.java, ResourceType.java; KIP-11, KIP-140. Patterns, permission types and the requests that
carry them (KIP-290) are not supported yet.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeAlias


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


Permission: TypeAlias = tuple[Operation, ResourceType]
"""An operation on resources of a type."""
