"""Simulates administrators that change ACLs and passwords, and clients whose rights depend on them.

A `Warden` takes a right away from its visitor and gives it back, and does the same with a password. A `Visitor` asks
all nodes for its topic and for its user. `Rights` holds what the metadata store has said, and when: each answer must be
true of some moment between the request and the answer, or of one so shortly before that the node could not know better.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from ottla.metadata.acls import AclTable
from ottla.metadata.credentials import Credentials
from ottla.protocol.acls import Operation, PatternType, PermissionType, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from ottla.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from ottla.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from ottla.protocol.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest, UserName
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.sim.clients.kafka import KafkaClient
from ottla.sim.clients.workload_view import WorkloadView
from ottla.sim.kernel.clock import MS, Micros
from ottla.sim.kernel.trace import InvariantError

VERSIONS: dict[int, int] = {
    ApiKey.CREATE_ACLS: 3,
    ApiKey.DELETE_ACLS: 3,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: 0,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: 0,
}
EVERYONE = "User:*"
SCRAM_SHA_256, ITERATIONS = 1, 4_096
EXPECTED = frozenset(
    {
        ErrorCode.NONE,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.RESOURCE_NOT_FOUND,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)
"""Answers to a change; only NONE says that it was made."""


def guarded(visitor: str) -> str:
    """The topic that a visitor asks for; it does not exist."""
    return f"guarded-{visitor}"


def facts_of(acls: AclTable, credentials: Credentials) -> Iterator[tuple[str, str]]:
    """Yield the facts about the visitors: ("denied", topic) and ("known", user)."""
    yield from (("denied", acl.name) for acl in acls if acl.permission is PermissionType.DENY)
    yield from (("known", user) for user in credentials)


class Rights:
    """Knows which facts were true in the metadata store at any time. A fact is (what, of whom)."""

    def __init__(self) -> None:
        self._facts: list[tuple[Micros, frozenset[tuple[str, str]]]] = [(0, frozenset())]
        """Since when, and what."""
        self.checked: Counter[tuple[str, bool]] = Counter()
        """How many answers said so of a fact of this kind, and how many the opposite."""

    def note(self, now_us: Micros, facts: frozenset[tuple[str, str]]) -> None:
        if facts != self._facts[-1][1]:
            self._facts.append((now_us, facts))

    def check(self, what: str, name: str, said: bool, since_us: Micros, until_us: Micros) -> None:
        """Raise InvariantError unless this was so, or not so, at some moment of this time."""
        self.checked[what, said] += 1
        ends = [began for began, _ in self._facts[1:]] + [until_us + 1]
        for (began, facts), ended in zip(self._facts, ends, strict=True):
            if began <= until_us and ended > since_us and ((what, name) in facts) is said:
                return
        raise InvariantError(f"{name}, {what}: {said}, says a node at {until_us}, and it was not so since {since_us}")

    def is_now(self, what: str, name: str) -> bool:
        return (what, name) in self._facts[-1][1]


class Visitor(KafkaClient):
    """Asks one node after another what it may see."""

    def __init__(self, workload: WorkloadView, name: str, rights: Rights) -> None:
        super().__init__(workload, name)
        self.versions.update(VERSIONS)
        self.rights = rights
        self.works = True
        self.after(self.rng.randrange(1_000 * MS), self.connect)
        self.after(1_000 * MS, self._ask)

    def _ask(self) -> None:
        if not self.works:
            return
        self.after(self.rng.randrange(10 * MS, 120 * MS), self._ask)
        if self.connection is None:
            return
        since_us = self.world.clock.now_us - self.workload.deaf_ms * MS
        at = self.rng.choice(self.workload.bootstraps)
        if self.rng.random() < 0.6:
            topics = [MetadataRequestTopic(name=guarded(self.name))]
            self.request(ApiKey.METADATA, MetadataRequest(topics, False), self._told_of_topic, since_us, at=at)
        else:
            request = DescribeUserScramCredentialsRequest([UserName(self.name)])
            self.request(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, request, self._told_of_user, since_us, at=at)

    def _told_of_topic(self, message: Any, since_us: Micros) -> None:
        if message is not None:
            denied = message.topics[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            self.rights.check("denied", guarded(self.name), denied, since_us, self.world.clock.now_us)

    def _told_of_user(self, message: Any, since_us: Micros) -> None:
        if message is not None:
            known = message.results[0].error_code == ErrorCode.NONE
            self.rights.check("known", self.name, known, since_us, self.world.clock.now_us)


class Warden(KafkaClient):
    """Changes the rights of one visitor, one request at a time."""

    def __init__(self, workload: WorkloadView, name: str, visitor: str) -> None:
        super().__init__(workload, name)
        self.versions.update(VERSIONS)
        self.visitor = visitor
        self.works = True
        self._busy = False
        self.after(self.rng.randrange(1_000 * MS), self.connect)
        self.after(1_000 * MS, self._work)

    def gone(self) -> None:
        self._busy = False

    def _work(self) -> None:
        if not self.works:
            return
        self.after(self.rng.randrange(100 * MS, 900 * MS), self._work)
        if self.connection is not None and not self._busy:
            self._busy = True
            self.rng.choice((self._deny, self._allow, self._set_password, self._remove_password))()

    @property
    def _denial(self) -> tuple[ResourceType, str, PatternType, str, str, Operation, PermissionType]:
        """The fields of the ACL that is added and removed."""
        topic, literal = guarded(self.visitor), PatternType.LITERAL
        return ResourceType.TOPIC, topic, literal, EVERYONE, self.visitor, Operation.ALL, PermissionType.DENY

    def _deny(self) -> None:
        self.request(ApiKey.CREATE_ACLS, CreateAclsRequest([AclCreation(*self._denial)]), self._done)

    def _allow(self) -> None:
        self.request(ApiKey.DELETE_ACLS, DeleteAclsRequest([DeleteAclsFilter(*self._denial)]), self._done)

    def _set_password(self) -> None:
        new = ScramCredentialUpsertion(self.visitor, SCRAM_SHA_256, ITERATIONS, b"salt", self.rng.randbytes(32))
        request = AlterUserScramCredentialsRequest(upsertions=[new])
        self.request(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, request, self._done)

    def _remove_password(self) -> None:
        request = AlterUserScramCredentialsRequest([ScramCredentialDeletion(self.visitor, SCRAM_SHA_256)])
        self.request(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, request, self._done)

    def _done(self, message: Any) -> None:
        self._busy = False
        results = () if message is None else getattr(message, "results", None) or message.filter_results
        for result in results:
            if result.error_code not in EXPECTED:
                raise InvariantError(
                    f"{self.name}: a change is answered by {result.error_code}: {result.error_message}"
                )
