"""What each API asks the authorizer about is what its spec declares, and what the authorizer says is heeded."""

from pathlib import Path

import pytest

from ottla.broker.client_identity import Identity
from ottla.broker.security.authorizer import Access
from ottla.broker.served import SPECS
from ottla.protocol.acls import Operation, Permission, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode as E

from tests.harness.broker.each_api import EachApi  # isort: skip

DENIED = {
    E.TOPIC_AUTHORIZATION_FAILED,
    E.GROUP_AUTHORIZATION_FAILED,
    E.CLUSTER_AUTHORIZATION_FAILED,
    E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    E.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}
OF_WHAT_IS_SEEN = {ApiKey.LIST_GROUPS, ApiKey.LIST_TRANSACTIONS, ApiKey.DESCRIBE_CLUSTER}
"""What a client may not see is left out of the answers of these, without an error."""


class Recording:
    """Allows all but what is denied, and remembers what it was asked."""

    def __init__(self) -> None:
        self.denied: set[Permission] = set()
        self.asked: set[Permission] = set()

    def allows(self, identity: Identity, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        self.asked.add((operation, resource_type))
        return (operation, resource_type) not in self.denied

    def allows_any(self, identity: Identity, operation: Operation, resource_type: ResourceType) -> bool:
        return self.allows(identity, operation, resource_type, "some")


@pytest.fixture
def each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EachApi:
    """Without what KIP-430's authorized_operations ask: every operation that there is."""
    monkeypatch.setattr(Access, "authorized_operations", lambda *_: 0)
    return EachApi(tmp_path)


@pytest.mark.parametrize("key", [spec.key for spec in SPECS.values()], ids=lambda key: key.name)
def test_an_api_asks_for_what_it_declares_and_heeds_the_answer(each: EachApi, key: ApiKey) -> None:
    declared = SPECS[key].acl
    rules = each.stage.node.access.authorizer = Recording()
    generation = each.stage.store.generation
    rules.denied = {(operation, resource_type) for operation in Operation for resource_type in ResourceType}
    refused = [each.errors(asking) & DENIED for asking in (*each.requests(key), *each.of_nodes(key))]
    if declared and key not in OF_WHAT_IS_SEEN:
        assert all(refused)
    assert each.stage.store.generation == generation, "who may nothing changes nothing"
    for permission in declared:
        rules.denied = {permission}
        for asking in (*each.requests(key), *each.of_nodes(key)):
            each.ask(asking)
    rules.denied = set()
    for asking in (*each.requests(key), *each.of_nodes(key)):
        assert not each.errors(asking) & DENIED or SPECS[key].internal
    assert rules.asked == set(declared)
