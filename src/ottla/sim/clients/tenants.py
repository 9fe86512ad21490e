"""Simulates users that log in with a password, write and read, while administrators change their passwords and ACLs.

A `Landlord` creates the topic of its tenant, grants and denies it rights on the topic, and changes its password. A
`Tenant` logs in at any node, often with an earlier password, and then writes and reads there. Some nodes do not lead
its topic, but a node decides about access before it looks for the partition: each answer shows a decision.

`Rights` (`visitors`) checks the answers by what the metadata store has said. A session must end with its lifetime.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final, Protocol

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
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest
from ottla.protocol.scram import MECHANISMS, ScramClient, ScramError, keys_of, salted
from ottla.sim.clients.admins import REPLICAS
from ottla.sim.clients.batches import encode_batch
from ottla.sim.clients.kafka import KafkaClient
from ottla.sim.clients.readers import BY_TOPIC_ID_SINCE, SESSION_LOST, SESSIONS_SINCE, FetchSession
from ottla.sim.clients.visitors import EXPECTED, ITERATIONS, SCRAM_SHA_256, Rights
from ottla.sim.clients.visitors import VERSIONS as ADMIN_VERSIONS
from ottla.sim.clients.workload_view import WorkloadView
from ottla.sim.kernel.clock import MS, Micros
from ottla.sim.kernel.host import with_login
from ottla.sim.kernel.network import Endpoint
from ottla.sim.kernel.trace import InvariantError

MECHANISM: Final = MECHANISMS[SCRAM_SHA_256]
SALT: Final = b"the same for all"
VERSIONS: Final[dict[int, int]] = {ApiKey.SASL_HANDSHAKE: 1, ApiKey.SASL_AUTHENTICATE: 2}
SESSION_LEFT_US: Micros = 20 * MS
"""How long a node may serve a session after its lifetime: timers fire late."""
AGAIN_AFTER_US: Micros = 1_100 * MS
"""When a tenant logs in again on the same connection; nodes refuse it within a second."""
DENIED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
WRITE, READ, PASSWORD = "may write", "may read", "logs in with"
OPERATIONS: Final = {WRITE: Operation.WRITE, READ: Operation.READ}


class TenantsView(WorkloadView, Protocol):
    """A workload with tenants, as they see it."""

    rights: Rights

    def topic_id(self, name: str) -> bytes | None:
        """The id of this topic; None if it does not exist yet."""
        ...

    def node_that_leads(self, topic: str) -> Endpoint | None:
        """Where the leader of the topic's only partition listens, as some node knows it."""
        ...


def topic_of(tenant: str) -> str:
    """The topic in which a tenant writes and reads."""
    return f"topic-of-{tenant}"


@lru_cache(maxsize=1024)
def stored_key(password: str) -> str:
    """Derive the key that the store has for this password."""
    return keys_of(MECHANISM, salted(MECHANISM, password.encode(), SALT, ITERATIONS)).stored_key.hex()


def facts_of(tenants: list[str], acls: AclTable, credentials: Credentials) -> Iterator[tuple[str, str]]:
    """Yield the facts about the tenants in these rows. This code shares nothing with the authorizer."""
    for tenant in tenants:
        rules = [acl for acl in acls if acl.resource_type is ResourceType.TOPIC and acl.name == topic_of(tenant)]
        for what, operation in OPERATIONS.items():
            of_it = {rule.permission for rule in rules if rule.operation in (operation, Operation.ALL)}
            if not rules or of_it == {PermissionType.ALLOW}:
                yield what, topic_of(tenant)
        credential = credentials.get(tenant, {}).get(MECHANISM)
        if credential is not None:
            yield PASSWORD, f"{tenant}:{credential.stored_key.hex()}"


class Landlord(KafkaClient):
    """Makes the topic of one tenant, and changes the tenant's rights and password, one request at a time."""

    def __init__(self, workload: WorkloadView, name: str, tenant: str) -> None:
        super().__init__(workload, name)
        self.versions.update(ADMIN_VERSIONS)
        self.tenant = tenant
        self.passwords = [f"{tenant}-0"]
        """All that it has tried to set, the newest last."""
        self.works = True
        self._busy = False
        self._has_topic = False
        self.after(self.rng.randrange(200 * MS), self.connect)
        self.after(300 * MS, self._work)

    def gone(self) -> None:
        self._busy = False

    def _work(self) -> None:
        if not self.works:
            return
        self.after(self.rng.randrange(60 * MS, 500 * MS), self._work)
        if self.connection is None or self._busy:
            return
        self._busy = True
        if not self._has_topic:
            self._create_topic()
            return
        change = self.rng.random()
        if change < 0.2 or len(self.passwords) == 1:
            self._set_password()
        elif change < 0.24:
            self._remove_password()
        else:
            self._change_rights()

    def _create_topic(self) -> None:
        replicas = min(REPLICAS, len(self.workload.bootstraps))
        request = CreateTopicsRequest([CreatableTopic(topic_of(self.tenant), 1, replicas)], 3_000)
        self.request(ApiKey.CREATE_TOPICS, request, self._created)

    def _created(self, message: Any) -> None:
        self._busy = False
        if message is not None:
            code = message.topics[0].error_code
            self._has_topic = code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)

    def _change_rights(self) -> None:
        """Grants are more frequent than denials, so that the tenant often may do something."""
        operation, permission = self.rng.choice(
            (
                (Operation.READ, PermissionType.ALLOW),
                (Operation.WRITE, PermissionType.ALLOW),
                (Operation.ALL, PermissionType.DENY),
            )
        )
        topic, literal = topic_of(self.tenant), PatternType.LITERAL
        rule = ResourceType.TOPIC, topic, literal, f"User:{self.tenant}", "*", operation, permission
        if (self.rng.random() < 0.65) is (permission is PermissionType.ALLOW):
            self.request(ApiKey.CREATE_ACLS, CreateAclsRequest([AclCreation(*rule)]), self._done)
        else:
            self.request(ApiKey.DELETE_ACLS, DeleteAclsRequest([DeleteAclsFilter(*rule)]), self._done)

    def _set_password(self) -> None:
        password = f"{self.tenant}-{len(self.passwords)}"
        self.passwords.append(password)
        key = salted(MECHANISM, password.encode(), SALT, ITERATIONS)
        new = ScramCredentialUpsertion(self.tenant, SCRAM_SHA_256, ITERATIONS, SALT, key)
        request = AlterUserScramCredentialsRequest(upsertions=[new])
        self.request(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, request, self._done)

    def _remove_password(self) -> None:
        request = AlterUserScramCredentialsRequest([ScramCredentialDeletion(self.tenant, SCRAM_SHA_256)])
        self.request(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, request, self._done)

    def _done(self, message: Any) -> None:
        self._busy = False
        results = () if message is None else getattr(message, "results", None) or message.filter_results
        for result in results:
            if result.error_code not in EXPECTED:
                raise InvariantError(f"{self.name}: a change is answered by {result.error_code}")


class Tenant(KafkaClient):
    """Logs in, and writes and reads, one request at a time. `denied`: the values that were refused."""

    workload: TenantsView

    def __init__(self, workload: TenantsView, name: str, landlord: Landlord) -> None:
        super().__init__(workload, name)
        self.versions.update(VERSIONS)
        self.landlord = landlord
        self.rights = workload.rights
        self.topic = topic_of(name)
        self.works = True
        self.denied: set[bytes] = set()
        self._number = 0
        self._busy = False
        self._logged_in = False
        self._was_refused = False
        self._logs_in_again = self.rng.random() < 0.6
        self._began_us: Micros = 0
        self._ends_us: Micros | None = None
        self._left = 0
        """How many requests it sends before it goes to another node."""
        self._scram: ScramClient | None = None
        self._session = FetchSession()
        self._uses_sessions = self.versions[ApiKey.FETCH] >= SESSIONS_SINCE and self.rng.random() < 0.6
        self.after(self.rng.randrange(500 * MS, 1_500 * MS), self.connect)
        self.after(600 * MS, self._work)

    def choose_node(self) -> Endpoint:
        """Prefer the leader of its topic, which appends and gives records."""
        leader = self.workload.node_that_leads(self.topic) if self.rng.random() < 0.6 else None
        return with_login(self.rng.choice(self.workload.bootstraps) if leader is None else leader)

    def connected(self) -> None:
        self._left = self.rng.choice((10, 60, 1_000))
        self._log_in()

    def gone(self) -> None:
        self._busy = self._logged_in = False
        self._session = FetchSession()

    def _since_us(self) -> Micros:
        """The earliest moment whose truth a node may still believe."""
        return self.world.clock.now_us - self.workload.deaf_ms * MS

    # ---- the login -------------------------------------------------------------------------------------------------

    def _log_in(self) -> None:
        self._busy = True
        tried = self.landlord.passwords
        newest = self._was_refused or self.rng.random() < 0.5
        password = tried[-1] if newest else self.rng.choice(tried[-4:])
        self._scram = ScramClient(MECHANISM, self.name, password, f"{self.rng.getrandbits(96):x}")
        self.request(ApiKey.SASL_HANDSHAKE, SaslHandshakeRequest(MECHANISM), self._greeted, password)

    def _greeted(self, message: Any, password: str) -> None:
        if message is None or self._scram is None:
            return
        if message.error_code:
            raise InvariantError(f"{self.name}: a handshake is answered by {message.error_code}")
        self._began_us = self.world.clock.now_us
        self._authenticate(self._scram.first(), self._challenged, password, self._since_us())

    def _authenticate(self, token: bytes, answer: Any, *args: Any) -> None:
        self.request(ApiKey.SASL_AUTHENTICATE, SaslAuthenticateRequest(token), answer, *args)

    def _challenged(self, message: Any, password: str, since_us: Micros) -> None:
        if message is None or self._scram is None:
            return
        if message.error_code:
            raise InvariantError(f"{self.name}: a node ends the exchange before it has seen the proof")
        self._authenticate(self._scram.final(bytes(message.auth_bytes)), self._judged, password, since_us)

    def _judged(self, message: Any, password: str, since_us: Micros) -> None:
        if message is None or self._scram is None:
            return
        accepted = message.error_code == ErrorCode.NONE
        self.rights.check(PASSWORD, f"{self.name}:{stored_key(password)}", accepted, since_us, self.world.clock.now_us)
        self._was_refused = not accepted
        if not accepted:
            self.hang_up()
            return
        try:
            self._scram.verify(bytes(message.auth_bytes))
        except ScramError as failed:
            raise InvariantError(f"{self.name}: {failed}") from failed
        self._logged_in, self._busy = True, False
        lifetime_ms = message.session_lifetime_ms
        self._ends_us = self.world.clock.now_us + lifetime_ms * MS if lifetime_ms else None

    # ---- its work --------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        if not self.works:
            return
        self.after(self.rng.randrange(5 * MS, 40 * MS), self._work)
        if self.connection is None or self._busy or not self._logged_in:
            return
        self._left -= 1
        if self._left < 0:
            self.hang_up(lingering=self.rng.random() < 0.3)
        elif self._must_log_in_again():
            self._log_in()
        elif self.rng.random() < 0.5:
            self._write()
        else:
            self._read()

    def _must_log_in_again(self) -> bool:
        """Whether it renews its session now. Some tenants never do: the node ends their sessions."""
        if self._ends_us is None or not self._logs_in_again:
            return False
        return self.world.clock.now_us > self._began_us + AGAIN_AFTER_US

    def _write(self) -> None:
        by_id = self.versions[ApiKey.PRODUCE] >= BY_TOPIC_ID_SINCE
        topic = self._named(TopicProduceData(), by_id, "name")
        if topic is None:
            return
        self._number += 1
        value = f"{self.name}:{self._number}".encode()
        topic.partition_data = [PartitionProduceData(0, encode_batch([(None, value)], self.world.clock.wall_ms))]
        self._busy = True
        request = ProduceRequest(None, self.rng.choice((1, -1)), 1_000, [topic])
        self.request(ApiKey.PRODUCE, request, self._written, value, *self._moments())

    def _moments(self) -> tuple[Micros, bool]:
        """Since when an answer may be true, and whether the session is over."""
        now_us = self.world.clock.now_us
        over = self._ends_us is not None and now_us > self._ends_us + SESSION_LEFT_US
        return self._since_us(), over

    def _named(self, topic: Any, by_id: bool, field: str) -> Any:
        """The topic of a request, with its id or its name; None if it has no id yet."""
        if by_id:
            topic.topic_id = self.workload.topic_id(self.topic)
            return None if topic.topic_id is None else topic
        setattr(topic, field, self.topic)
        return topic

    def _written(self, message: Any, value: bytes, since_us: Micros, over: bool) -> None:
        if message is None:
            return
        code = message.responses[0].partition_responses[0].error_code
        if code == DENIED:
            self.denied.add(value)
        self._decided(WRITE, code, since_us, over)

    def _read(self) -> None:
        by_id = self.versions[ApiKey.FETCH] >= BY_TOPIC_ID_SINCE
        topic = self._named(FetchTopic(), by_id, "topic")
        if topic is None:
            return
        topic.partitions = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=500)]
        session = self._session
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=self.rng.choice((0, 100)),
            min_bytes=1,
            max_bytes=1_000,
            session_id=session.id,
            session_epoch=session.epoch if self._uses_sessions else -1,
            topics=[] if session.id else [topic],
        )
        self._busy = True
        self.request(ApiKey.FETCH, request, self._answered, *self._moments())

    def _answered(self, message: Any, since_us: Micros, over: bool) -> None:
        if message is None:
            return
        session = self._session
        if message.error_code in SESSION_LOST:
            self._session = FetchSession()
            self._busy = False
            return
        if message.session_id:
            session.id, session.epoch = message.session_id, session.epoch + 1
        parts = [part for topic in message.responses for part in topic.partitions]
        for part in parts:
            if part.error_code == DENIED and part.records:
                raise InvariantError(f"{self.name} is denied, and gets records all the same")
        code = parts[0].error_code if parts else ErrorCode.NONE  # a session leaves out what has not changed
        self._decided(READ, code, since_us, over)

    def _decided(self, what: str, code: int, since_us: Micros, over: bool) -> None:
        """Check a node's decision. That it does not know the topic's id decides nothing."""
        self._busy = False
        if over:
            raise InvariantError(f"{self.name} is served after the lifetime of its session")
        if code != ErrorCode.UNKNOWN_TOPIC_ID:
            self.rights.check(what, self.topic, code != DENIED, since_us, self.world.clock.now_us)
