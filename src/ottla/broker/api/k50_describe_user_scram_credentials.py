"""DescribeUserScramCredentials, key 50, version 0: which users have passwords, by which mechanisms.

The answer has the mechanisms and the iterations, never a salt or a key.

Source: ScramImage.describe; KIP-554.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ottla.broker.api_spec import ApiSpec
from ottla.broker.effects import Parked
from ottla.broker.requests import Request
from ottla.broker.slices import SLICE_STEPS, Work, encoded_in_slices
from ottla.metadata.credentials import CREDENTIALS, ScramCredential
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from ottla.protocol.scram import MECHANISMS

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
    versions=(0, 0),
    acl=((Operation.DESCRIBE, ResourceType.CLUSTER),),
)


TWICE = "Cannot describe SCRAM credentials for the same user twice in a single request: "
UNKNOWN = "Attempt to describe a user credential that does not exist: "


def handle(node: Core, request: Request) -> DescribeUserScramCredentialsResponse | Parked:
    return node.slices.begin(request, _answer(node, request), is_long=len(request.body.users or ()) > SLICE_STEPS)


def _answer(node: Core, request: Request) -> Work:
    body: DescribeUserScramCredentialsRequest = request.body
    if not node.access.on_cluster(request, Operation.DESCRIBE):
        denied = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        results = [DescribeUserScramCredentialsResult("", denied, None) for _ in body.users or ()]
        return DescribeUserScramCredentialsResponse(error_code=denied, error_message=None, results=results)
    known = node.image[CREDENTIALS]
    times = Counter(user.name for user in body.users) if body.users else Counter(list(known))
    found = (_of_user(known.get(name, {}), name, count > 1) for name, count in times.items())
    results: Any = list(found) if len(times) <= SLICE_STEPS else (yield from encoded_in_slices(found, 0))
    return DescribeUserScramCredentialsResponse(error_message="", results=results)


def _of_user(known: Mapping[str, ScramCredential], name: str, twice: bool) -> DescribeUserScramCredentialsResult:
    if twice or not known:
        error = ErrorCode.DUPLICATE_RESOURCE if twice else ErrorCode.RESOURCE_NOT_FOUND
        return DescribeUserScramCredentialsResult(name, error, (TWICE if twice else UNKNOWN) + name)
    infos = [CredentialInfo(code, known[each].iterations) for code, each in MECHANISMS.items() if each in known]
    return DescribeUserScramCredentialsResult(name, ErrorCode.NONE, None, infos)
