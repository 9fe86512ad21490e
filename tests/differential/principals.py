"""Asks an API as principals with different rights, and writes all their answers in one step of the transcript.

Resources whose names begin with `a.` are granted to some of the principals, those with `z.` are hidden from them; a
wildcard shows both. The rights come from the specs of the APIs, so a new API has its principals by itself.

    unauthenticated   a client of a listener with SASL that has not logged in
    anonymous         a client of a listener without SASL
    nobody            logged in, without any ACL
    describe.*        may describe every type of resource
    right.*           has every permission in the API's spec
    denied.*          the same, and a DENY for each of them
    without.*         has every permission in the API's spec but one
    admin             a super user

`*` of the first ones is the kind of pattern: literal, prefixed or wildcard. The answers of principals who get the same
are written once.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterable
from typing import Any

from ottla.broker.api_spec import ApiSpec
from ottla.broker.served import SPECS
from ottla.client.sasl import Login
from ottla.protocol.acls import (
    CLUSTER_NAME,
    Operation,
    PatternType,
    Permission,
    PermissionType,
    ResourceType,
)
from ottla.protocol.apis import APIS
from ottla.protocol.apis import ApiKey as K
from ottla.protocol.scram import ITERATIONS_MIN, salted

from .batches import batch
from .stage import Stage

MECHANISM, PASSWORD, SALT = "SCRAM-SHA-256", "secret", b"the same for all"
PATTERNS = ("literal", "prefixed", "wildcard")
DESCRIBING: tuple[Permission, ...] = tuple(
    (Operation.DESCRIBE, kind)
    for kind in (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID)
)
UNKNOWN_ID = uuid.UUID(int=77).bytes
FIXED = ("t", "none", "g", "c", "mixed", "tx", "made")
"""The names behind `a.` that principals with literal patterns are granted, beside those of their own."""

_SENTENCE = re.compile(r'"~(?:[^"\\]|\\.)*"')
"""Kafka's sentences name sessions and buffers, which are never the same."""

Question = Callable[[str], dict[str, Any]]
"""Returns the fields of the request of a principal, who is given by name."""


def of_own(short: str, who: str) -> str:
    """A name behind `a.` or `z.` that no other principal's requests have."""
    return f"{short}.{who}"


ASKED: dict[str, str] = {
    "records": "Produce Fetch ListOffsets DeleteRecords OffsetForLeaderEpoch DescribeProducers",
    "topics": "Metadata DescribeTopicPartitions CreateTopics DeleteTopics CreatePartitions",
    "configs": "DescribeConfigs AlterConfigs IncrementalAlterConfigs ListConfigResources",
    "groups": "FindCoordinator JoinGroup SyncGroup Heartbeat LeaveGroup DescribeGroups ListGroups DeleteGroups "
    "OffsetCommit OffsetFetch OffsetDelete",
    "consumer_groups": "ConsumerGroupHeartbeat ConsumerGroupDescribe",
    "share_groups": "ShareGroupHeartbeat ShareGroupDescribe ShareFetch ShareAcknowledge DescribeShareGroupOffsets "
    "AlterShareGroupOffsets DeleteShareGroupOffsets",
    "streams_groups": "StreamsGroupHeartbeat StreamsGroupDescribe",
    "share_state": "InitializeShareGroupState ReadShareGroupState WriteShareGroupState DeleteShareGroupState "
    "ReadShareGroupStateSummary",
    "transactions": "InitProducerId AddPartitionsToTxn AddOffsetsToTxn EndTxn TxnOffsetCommit WriteTxnMarkers "
    "DescribeTransactions ListTransactions",
    "cluster": "DescribeCluster DescribeLogDirs AlterReplicaLogDirs ElectLeaders DescribeQuorum "
    "AlterPartitionReassignments ListPartitionReassignments UpdateFeatures UnregisterBroker AddRaftVoter "
    "RemoveRaftVoter",
    "users": "DescribeAcls CreateAcls DeleteAcls DescribeClientQuotas AlterClientQuotas DescribeUserScramCredentials "
    "AlterUserScramCredentials CreateDelegationToken RenewDelegationToken ExpireDelegationToken "
    "DescribeDelegationToken",
    "anyone": "ApiVersions SaslHandshake SaslAuthenticate",
    "share_partitions": "DescribeSharePartitions ExplainShareRecords",
    "observations": "DescribeObservations",
    "together": "ReadTogether",
}
"""The APIs that each scenario asks."""


class Principals:
    """The users of a scenario, who exist from the beginning on. `owned`: the names behind `a.` of which every principal
    has one of its own."""

    def __init__(self, s: Stage, specs: Iterable[ApiSpec], owned: Iterable[str] = ()) -> None:
        self.s = s
        self._owned = tuple(owned)
        self._users: dict[str, str] = {}
        """The users' names by what they may do."""
        self._acls: list[dict[str, Any]] = []
        self._nobody = self._user("nobody", (), "literal")
        for spec in specs:
            for who, _ in self.who(spec):
                self._as(spec, who)
        self._create()

    def ask(
        self,
        spec: ApiSpec,
        step: str,
        question: Question | dict[str, Any],
        version: int | None = None,
        *,
        ours: bool = False,
        keep: Callable[[Any], Any] | None = None,
    ) -> None:
        """Ask as every principal of the API, and write their answers down."""
        s, api = self.s, APIS[spec.key].name
        version = spec.versions[1] if version is None else version
        first: dict[str, str] = {}
        answers: dict[str, Any] = {}
        for who, _ in self.who(spec):
            fields = question(who) if callable(question) else question
            answer = s.answer(api, version, on=self._as(spec, who), ours=ours, **fields)
            if keep is not None and answer != "closed":
                answer = keep(answer)
            text = _SENTENCE.sub('"~"', json.dumps(answer, sort_keys=True)).replace(f".{who}", "")
            answers[who] = f"as {first[text]}" if text in first else json.loads(text)
            first.setdefault(text, who)
        s.write(f"{api}: {step}", api, version, answers)

    # ---- who there is ----------------------------------------------------------------------------------------------

    @staticmethod
    def who(spec: ApiSpec) -> list[tuple[str, tuple[Permission, ...]]]:
        who: list[tuple[str, tuple[Permission, ...]]] = [("unauthenticated", ()), ("anonymous", ()), ("nobody", ())]
        if spec.before_authentication:
            return who[1:]
        if spec.acl:
            for pattern in PATTERNS:
                who += [(f"describe.{pattern}", DESCRIBING), (f"right.{pattern}", spec.acl)]
                who += [(f"denied.{pattern}", spec.acl)]
        if len(spec.acl) > 1:
            for left_out in spec.acl:
                rest = tuple(each for each in spec.acl if each != left_out)
                who.append((f"without.{left_out[1].name}.{left_out[0].name}", rest))
        return [*who, ("admin", ())]

    def _as(self, spec: ApiSpec, who: str) -> str:
        """The name of the connection of a principal; its user is created with the others."""
        role, _, pattern = who.partition(".")
        match role:
            case "unauthenticated" | "anonymous":
                return who
            case "admin":
                return "a"
            case "nobody":
                return self._nobody
            case _:
                rights = dict(self.who(spec))[who]
                pattern = pattern if pattern in PATTERNS else "prefixed"
                return self._user(role if role == "denied" else "allowed", rights, pattern)

    def _user(self, role: str, rights: tuple[Permission, ...], pattern: str) -> str:
        what = json.dumps([role, pattern, sorted(rights)])
        if what not in self._users:
            user = self._users[what] = self.s.name(f"u{len(self._users)}")
            self.s.log_in_as(Login(MECHANISM, user, PASSWORD), on=user)
            for permission in rights:
                for name, pattern_type in self._patterns(permission[1], pattern):
                    self._acls.append(acl(user, permission, name, pattern_type, PermissionType.ALLOW))
                    if role == "denied":
                        self._acls.append(acl(user, permission, name, pattern_type, PermissionType.DENY))
        return self._users[what]

    def _patterns(self, kind: ResourceType, pattern: str) -> list[tuple[str, PatternType]]:
        prefix = self.s.name("a.")
        if kind is ResourceType.CLUSTER:
            return [(CLUSTER_NAME, PatternType.PREFIXED if pattern == "prefixed" else PatternType.LITERAL)]
        if pattern == "prefixed":
            return [(prefix, PatternType.PREFIXED)]
        if pattern == "wildcard":
            return [("*", PatternType.LITERAL)]
        roles = ("describe", "right", "denied")
        names = [*FIXED, *(of_own(short, f"{role}.literal") for short in self._owned for role in roles)]
        return [(prefix + name, PatternType.LITERAL) for name in names]

    def _create(self) -> None:
        """Create the users and their ACLs, and wait until the broker knows them."""
        s = self.s
        password = salted(MECHANISM, PASSWORD.encode(), SALT, ITERATIONS_MIN)
        credential = {"mechanism": 1, "iterations": ITERATIONS_MIN, "salt": SALT, "salted_password": password}
        users = [{"name": user, **credential} for user in self._users.values()]
        answer = s.send("AlterUserScramCredentials", upsertions=users)
        assert not any(each.error_code for each in answer.results), answer
        answer = s.send("CreateAcls", creations=self._acls)
        assert not any(each.error_code for each in answer.results), [each for each in answer.results if each.error_code]
        if s.slow:
            s.settle()
            s.settle()


def acl(
    user: str, permission: Permission, name: str, pattern_type: PatternType, permission_type: PermissionType
) -> dict[str, Any]:
    return {
        "resource_type": permission[1],
        "resource_name": name,
        "resource_pattern_type": pattern_type,
        "principal": f"User:{user}",
        "host": "*",
        "operation": permission[0],
        "permission_type": permission_type,
    }


class Matrix:
    """The principals of a scenario, and the names that its requests use."""

    def __init__(self, s: Stage, scenario: str, *owned: str) -> None:
        self.s = s
        asked = ASKED[scenario].split()
        self.specs = {spec.key: spec for spec in SPECS.values() if APIS[spec.key].name in asked}
        self.principals = Principals(s, self.specs.values(), owned)

    def ask(self, key: K, step: str, version: int | None = None, **how: Any) -> Callable[..., None]:
        """A function that asks with the fields of a request, or with what returns them for a principal."""

        def asked(question: Callable[[str], dict[str, Any]] | None = None, /, **fields: Any) -> None:
            self.principals.ask(self.specs[key], step, question or fields, version, **how)

        return asked

    def shown(self, short: str) -> str:
        return self.s.name(f"a.{short}")

    def hidden(self, short: str) -> str:
        return self.s.name(f"z.{short}")

    def four(self, short: str) -> list[str]:
        """One that is granted, one that is hidden, and two that are missing."""
        return [self.shown(short), self.hidden(short), self.shown("none"), self.hidden("none")]

    def topics(self) -> list[str]:
        """`a.t` and `z.t`, each with a record."""
        for name in ("a.t", "z.t"):
            self.s.create(name)
            self.s.append(self.s.name(name), batch("v"))
        return self.four("t")
