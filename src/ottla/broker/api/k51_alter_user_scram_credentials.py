"""AlterUserScramCredentials, key 51, version 0: set and remove users' passwords.

The handler checks each change as Kafka does. Authentication is not implemented yet, so there is no password to remove
(RESOURCE_NOT_FOUND). Setting one is refused with a message, because it would have no effect. The error is
UNSUPPORTED_VERSION, as from a Kafka whose metadata.version has no passwords.

Not supported: setting a password.

Source: ScramControlManager.alterCredentials; KIP-554.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

from ottla.broker.api_spec import ApiSpec
from ottla.broker.requests import Parked, Request
from ottla.broker.slices import SLICE_STEPS, Work, encoded_in_slices
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
    versions=(0, 0),
    acl=((Operation.ALTER, ResourceType.CLUSTER),),
)


_Error: TypeAlias = tuple[ErrorCode, str | None]

MECHANISMS = (1, 2)
"""SCRAM-SHA-256 and SCRAM-SHA-512."""
ITERATIONS_MIN, ITERATIONS_MAX = 4096, 16384
NOT_ALLOWED: _Error = (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, None)
NO_NAME: _Error = (ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
NO_MECHANISM: _Error = (ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
NOT_THERE: _Error = (ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")
TWICE: _Error = (ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request")
TOO_FEW: _Error = (ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
TOO_MANY: _Error = (ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
NOT_BUILT: _Error = (ErrorCode.UNSUPPORTED_VERSION, "Passwords can't be set: this version of Ottla has none.")


def handle(node: Core, request: Request) -> AlterUserScramCredentialsResponse | Parked:
    body: AlterUserScramCredentialsRequest = request.body
    is_long = len(body.deletions) + len(body.upsertions) > SLICE_STEPS
    return node.slices.begin(request, _answer(node, request), is_long=is_long)


def _answer(node: Core, request: Request) -> Work:
    body: AlterUserScramCredentialsRequest = request.body
    allowed = node.access.on_cluster(request, Operation.ALTER)
    errors: dict[str, _Error] = {}
    for done, asked in enumerate(chain(body.deletions, body.upsertions), 1):
        if not allowed:
            errors[asked.name] = NOT_ALLOWED
        elif asked.name not in errors:
            errors[asked.name] = _error(asked)
        elif errors[asked.name] is NOT_BUILT:
            errors[asked.name] = TWICE
        if done % SLICE_STEPS == 0:
            yield
    results: Any = (AlterUserScramCredentialsResult(name, *error) for name, error in errors.items())
    if len(errors) <= SLICE_STEPS:
        return AlterUserScramCredentialsResponse(results=list(results))
    ready: Any = yield from encoded_in_slices(results, request.version)
    return AlterUserScramCredentialsResponse(results=ready)


def _error(asked: ScramCredentialDeletion | ScramCredentialUpsertion) -> _Error:
    """Why this change is refused, if it is the only one of its user."""
    if not asked.name:
        return NO_NAME
    if asked.mechanism not in MECHANISMS:
        return NO_MECHANISM
    if isinstance(asked, ScramCredentialDeletion):
        return NOT_THERE
    if asked.iterations < ITERATIONS_MIN:
        return TOO_FEW
    return TOO_MANY if asked.iterations > ITERATIONS_MAX else NOT_BUILT
