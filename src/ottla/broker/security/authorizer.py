"""Decides about access, in one place: which operation on which resource a request needs.

Knows Kafka's operations and resource types with their codes, the operation every API needs (`NEEDED`), and how the
authorized_operations bit fields are made. Does not know who may do what: that is an `Authorizer`'s business, and a node
without one allows everything.

Every handler authorizes first, then looks up, then acts, so that an error never tells a stranger whether a name exists.

Sources: AclOperation.java, ResourceType.java, AclEntry.scala (supportedOperations), KafkaApis.scala; KIP-11, KIP-430.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, Protocol

from ottla.broker.requests import Request, Session


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


CLUSTER_NAME: Final = "kafka-cluster"
"""The name of the one resource of type CLUSTER."""

NOT_ASKED: Final = -(1 << 31)
"""authorized_operations where the client did not ask for them."""

_O = Operation
SUPPORTED: Final[dict[ResourceType, tuple[Operation, ...]]] = {
    ResourceType.TOPIC: (
        _O.READ,
        _O.WRITE,
        _O.CREATE,
        _O.DESCRIBE,
        _O.DELETE,
        _O.ALTER,
        _O.DESCRIBE_CONFIGS,
        _O.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (_O.READ, _O.DESCRIBE, _O.DELETE, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS),
    ResourceType.CLUSTER: (
        _O.CREATE,
        _O.CLUSTER_ACTION,
        _O.DESCRIBE_CONFIGS,
        _O.ALTER_CONFIGS,
        _O.IDEMPOTENT_WRITE,
        _O.ALTER,
        _O.DESCRIBE,
    ),
}
"""The operations that mean something on a resource, in the order Kafka lists them."""

_T = ResourceType
NEEDED: Final[dict[int, tuple[tuple[Operation, ResourceType], ...]]] = {
    0: ((_O.WRITE, _T.TOPIC), (_O.WRITE, _T.TRANSACTIONAL_ID)),
    1: ((_O.READ, _T.TOPIC), (_O.CLUSTER_ACTION, _T.CLUSTER)),
    2: ((_O.DESCRIBE, _T.TOPIC),),
    3: ((_O.DESCRIBE, _T.TOPIC), (_O.CREATE, _T.CLUSTER), (_O.CREATE, _T.TOPIC)),
    8: ((_O.READ, _T.GROUP), (_O.READ, _T.TOPIC)),
    9: ((_O.DESCRIBE, _T.GROUP), (_O.DESCRIBE, _T.TOPIC)),
    10: ((_O.DESCRIBE, _T.GROUP), (_O.DESCRIBE, _T.TRANSACTIONAL_ID), (_O.CLUSTER_ACTION, _T.CLUSTER)),
    11: ((_O.READ, _T.GROUP),),
    12: ((_O.READ, _T.GROUP),),
    13: ((_O.READ, _T.GROUP),),
    14: ((_O.READ, _T.GROUP),),
    15: ((_O.DESCRIBE, _T.GROUP),),
    16: ((_O.DESCRIBE, _T.CLUSTER), (_O.DESCRIBE, _T.GROUP)),
    17: (),
    18: (),
    19: ((_O.CREATE, _T.CLUSTER), (_O.CREATE, _T.TOPIC), (_O.DESCRIBE_CONFIGS, _T.TOPIC)),
    20: ((_O.DELETE, _T.CLUSTER), (_O.DELETE, _T.TOPIC), (_O.DESCRIBE, _T.TOPIC)),
    21: ((_O.DELETE, _T.TOPIC),),
    22: ((_O.WRITE, _T.TRANSACTIONAL_ID), (_O.IDEMPOTENT_WRITE, _T.CLUSTER), (_O.WRITE, _T.TOPIC)),
    23: ((_O.DESCRIBE, _T.TOPIC), (_O.CLUSTER_ACTION, _T.CLUSTER)),
    24: ((_O.WRITE, _T.TRANSACTIONAL_ID), (_O.WRITE, _T.TOPIC), (_O.CLUSTER_ACTION, _T.CLUSTER)),
    25: ((_O.WRITE, _T.TRANSACTIONAL_ID), (_O.READ, _T.GROUP)),
    26: ((_O.WRITE, _T.TRANSACTIONAL_ID),),
    27: ((_O.ALTER, _T.CLUSTER), (_O.CLUSTER_ACTION, _T.CLUSTER)),
    28: ((_O.WRITE, _T.TRANSACTIONAL_ID), (_O.READ, _T.GROUP), (_O.READ, _T.TOPIC)),
    29: ((_O.DESCRIBE, _T.CLUSTER),),
    30: ((_O.ALTER, _T.CLUSTER),),
    31: ((_O.ALTER, _T.CLUSTER),),
    32: ((_O.DESCRIBE_CONFIGS, _T.TOPIC), (_O.DESCRIBE_CONFIGS, _T.GROUP), (_O.DESCRIBE_CONFIGS, _T.CLUSTER)),
    33: ((_O.ALTER_CONFIGS, _T.TOPIC), (_O.ALTER_CONFIGS, _T.GROUP), (_O.ALTER_CONFIGS, _T.CLUSTER)),
    34: ((_O.ALTER, _T.CLUSTER),),
    35: ((_O.DESCRIBE, _T.CLUSTER),),
    36: (),
    37: ((_O.ALTER, _T.TOPIC),),
    38: ((_O.CREATE_TOKENS, _T.USER),),
    39: (),
    40: (),
    41: (),
    42: ((_O.DELETE, _T.GROUP),),
    43: ((_O.ALTER, _T.CLUSTER),),
    44: ((_O.ALTER_CONFIGS, _T.TOPIC), (_O.ALTER_CONFIGS, _T.GROUP), (_O.ALTER_CONFIGS, _T.CLUSTER)),
    45: ((_O.ALTER, _T.CLUSTER),),
    46: ((_O.DESCRIBE, _T.CLUSTER),),
    47: ((_O.DELETE, _T.GROUP), (_O.READ, _T.TOPIC)),
    48: ((_O.DESCRIBE_CONFIGS, _T.CLUSTER),),
    49: ((_O.ALTER_CONFIGS, _T.CLUSTER),),
    50: ((_O.DESCRIBE, _T.CLUSTER),),
    51: ((_O.ALTER, _T.CLUSTER),),
    55: ((_O.DESCRIBE, _T.CLUSTER),),
    56: ((_O.CLUSTER_ACTION, _T.CLUSTER),),
    57: ((_O.ALTER, _T.CLUSTER),),
    58: ((_O.CLUSTER_ACTION, _T.CLUSTER),),
    60: ((_O.DESCRIBE, _T.CLUSTER),),
    61: ((_O.READ, _T.TOPIC),),
    64: ((_O.ALTER, _T.CLUSTER),),
    65: ((_O.DESCRIBE, _T.TRANSACTIONAL_ID),),
    66: (),
    74: ((_O.DESCRIBE_CONFIGS, _T.CLUSTER),),
    75: ((_O.DESCRIBE, _T.TOPIC),),
    68: ((_O.READ, _T.GROUP), (_O.DESCRIBE, _T.TOPIC)),
    69: ((_O.DESCRIBE, _T.GROUP), (_O.DESCRIBE, _T.TOPIC)),
    76: ((_O.READ, _T.GROUP), (_O.DESCRIBE, _T.TOPIC)),
    77: ((_O.DESCRIBE, _T.GROUP), (_O.DESCRIBE, _T.TOPIC)),
    78: ((_O.READ, _T.GROUP), (_O.READ, _T.TOPIC)),
    79: ((_O.READ, _T.GROUP), (_O.READ, _T.TOPIC)),
    80: ((_O.ALTER, _T.CLUSTER),),
    81: ((_O.ALTER, _T.CLUSTER),),
    83: ((_O.CLUSTER_ACTION, _T.CLUSTER),),
    84: ((_O.CLUSTER_ACTION, _T.CLUSTER),),
    85: ((_O.CLUSTER_ACTION, _T.CLUSTER),),
    86: ((_O.CLUSTER_ACTION, _T.CLUSTER),),
    87: ((_O.CLUSTER_ACTION, _T.CLUSTER),),
    88: (),
    89: (),
    90: ((_O.DESCRIBE, _T.GROUP), (_O.DESCRIBE, _T.TOPIC)),
    91: ((_O.READ, _T.GROUP), (_O.READ, _T.TOPIC)),
    92: ((_O.DELETE, _T.GROUP), (_O.READ, _T.TOPIC)),
}
"""Every served API and what its handler may ask for; tests/test_served.py fails for a key without a row."""


class Authorizer(Protocol):
    """Decides. `allows` is a pure question: it may be asked any number of times for one request."""

    def allows(self, session: Session, operation: Operation, resource_type: ResourceType, name: str) -> bool: ...


class Access:
    """Answers whether a client may do something: asks the authorizer, and allows everything where there is none."""

    __slots__ = ("authorizer",)

    def __init__(self) -> None:
        self.authorizer: Authorizer | None = None

    def allows(self, session: Session, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        return self.authorizer is None or self.authorizer.allows(session, operation, resource_type, name)

    def on_topic(self, request: Request, operation: Operation, name: str) -> bool:
        return self.allows(request.session, operation, ResourceType.TOPIC, name)

    def on_group(self, request: Request, operation: Operation, group_id: str) -> bool:
        return self.allows(request.session, operation, ResourceType.GROUP, group_id)

    def on_cluster(self, request: Request, operation: Operation) -> bool:
        return self.allows(request.session, operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def authorized_operations(self, request: Request, resource_type: ResourceType, name: str) -> int:
        """The bit field of KIP-430: bit 1 << code for each operation the client may do."""
        bits = 0
        for operation in SUPPORTED[resource_type]:
            if self.allows(request.session, operation, resource_type, name):
                bits |= 1 << operation
        return bits
