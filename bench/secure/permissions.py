"""What ACLs cost: small Produce requests on a node with 10,000 of them, and on one without an authorizer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from bench.brokers import Broker, Nodes
from ottla.client.errors import check
from ottla.protocol.acls import CLUSTER_NAME, Operation, PatternType, PermissionType, ResourceType
from ottla.protocol.messages.create_acls import AclCreation, CreateAclsRequest

ACLS = 10_000
TOGETHER = 1_000
CLIENT, ANY_HOST = "User:ANONYMOUS", "*"
SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin",
    "allow.everyone.if.no.acl.found": "true",
}
"""The client of the benchmark is no super user. It may add the first ACLs, as there are none before."""


def acls_of(principal: str, resource: ResourceType, name: str, pattern: PatternType) -> AclCreation:
    return AclCreation(resource, name, pattern, principal, ANY_HOST, Operation.ALL, PermissionType.ALLOW)


def all_acls(count: int) -> list[AclCreation]:
    """Those that the client needs, and many of other users: on topics by name and by prefix."""
    own = [
        acls_of(CLIENT, ResourceType.CLUSTER, CLUSTER_NAME, PatternType.LITERAL),
        acls_of(CLIENT, ResourceType.TOPIC, "bench-", PatternType.PREFIXED),
    ]
    kinds = (PatternType.LITERAL, PatternType.PREFIXED)
    others = [
        acls_of(f"User:user-{i % 500}", ResourceType.TOPIC, f"topic-{i}", kinds[i % 2]) for i in range(count - len(own))
    ]
    return own + others


@contextlib.contextmanager
def sides(nodes: Nodes, count: int = ACLS) -> Iterator[dict[str, Broker]]:
    """A node with so many ACLs, and one without an authorizer."""
    with nodes.running() as open_node, nodes.running(SETTINGS) as closed:
        creations = all_acls(count)
        with closed.client() as client:
            for start in range(0, count, TOGETHER):
                answer = client.send(CreateAclsRequest(creations[start : start + TOGETHER]))
                for each in answer.results:
                    check(each.error_code, "an ACL", each.error_message)
        yield {f"{count:,} ACLs": closed, "none": open_node}
