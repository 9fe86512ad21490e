"""DescribeUserScramCredentials, key 50, version 0: which users have passwords.

There is no authentication yet, so no user has one.

Source: ScramImage.describe; KIP-554.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from ottla.broker.api_spec import ApiSpec
from ottla.broker.requests import Parked, Request
from ottla.broker.slices import SLICE_STEPS, Work, encoded_in_slices
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)

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
        return DescribeUserScramCredentialsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    times = Counter(user.name for user in body.users or ())
    if len(times) <= SLICE_STEPS:
        results: Any = [_of_user(name, count > 1) for name, count in times.items()]
    else:
        results = yield from encoded_in_slices((_of_user(name, count > 1) for name, count in times.items()), 0)
    return DescribeUserScramCredentialsResponse(error_message="", results=results)


def _of_user(name: str, twice: bool) -> DescribeUserScramCredentialsResult:
    error = ErrorCode.DUPLICATE_RESOURCE if twice else ErrorCode.RESOURCE_NOT_FOUND
    return DescribeUserScramCredentialsResult(name, error, (TWICE if twice else UNKNOWN) + name)
