"""AlterUserScramCredentials, key 51, version 0: set and remove users' passwords.

The controller checks each change as Kafka does and writes all valid ones at once, a large number in slices. The request
carries salted passwords; the node stores the keys that are derived from them. Every node authenticates by a credential
as soon as its image has it. Connections that were authenticated by an older one stay.

Source: ScramControlManager.alterCredentials; KIP-554.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

from ottla.broker.api_spec import ApiSpec, Forwarding
from ottla.broker.cluster.members import error_of
from ottla.broker.cluster.metadata import Planned, RowBatch, RowChange
from ottla.broker.effects import Parked
from ottla.broker.requests import Request
from ottla.broker.slices import SLICE_STEPS, Work, encoded_in_slices
from ottla.machine import Millis
from ottla.metadata.credentials import CREDENTIALS, ScramCredential, key_of
from ottla.metadata.store import StoreError
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
from ottla.protocol.scram import ITERATIONS_MAX, ITERATIONS_MIN, MECHANISMS, keys_of

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
    versions=(0, 0),
    acl=((Operation.ALTER, ResourceType.CLUSTER),),
    forwarding=Forwarding.WHOLE,
)


_Error: TypeAlias = tuple[ErrorCode, str | None]

NOT_ALLOWED: _Error = (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED.message)
NO_NAME: _Error = (ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
NO_MECHANISM: _Error = (ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
NOT_THERE: _Error = (ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")
TWICE: _Error = (ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request")
TOO_FEW: _Error = (ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
TOO_MANY: _Error = (ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
VALID: _Error = (ErrorCode.NONE, None)
CHANGES_AT_ONCE = 200


Change: TypeAlias = ScramCredentialDeletion | ScramCredentialUpsertion


def handle(node: Core, request: Request) -> AlterUserScramCredentialsResponse | Parked:
    body: AlterUserScramCredentialsRequest = request.body
    is_long = len(body.deletions) + len(body.upsertions) > SLICE_STEPS
    return node.slices.begin(request, _answer(node, request), is_long=is_long)


def refused(request: Request, error: ErrorCode, sentence: str | None) -> AlterUserScramCredentialsResponse:
    """The answer if nothing of the request was done, as far as this node knows."""
    names = dict.fromkeys(each.name for each in chain(request.body.deletions, request.body.upsertions))
    return AlterUserScramCredentialsResponse(
        results=[AlterUserScramCredentialsResult(name, error, sentence) for name in names]
    )


def _answer(node: Core, request: Request) -> Work:
    body: AlterUserScramCredentialsRequest = request.body
    allowed = node.access.on_cluster(request, Operation.ALTER)
    errors: dict[str, _Error] = {}
    changes: dict[str, Change] = {}
    for done, asked in enumerate(chain(body.deletions, body.upsertions), 1):
        if not allowed:
            errors[asked.name] = NOT_ALLOWED
        elif asked.name not in errors:
            errors[asked.name] = _error(node, asked)
            changes[asked.name] = asked
        elif errors[asked.name] is VALID:
            errors[asked.name] = TWICE
        if done % SLICE_STEPS == 0:
            yield
    valid = [name for name, error in errors.items() if error is VALID]
    for first in range(0, len(valid), CHANGES_AT_ONCE):
        some = valid[first : first + CHANGES_AT_ONCE]
        outcome: _Error = yield partial(_altering, node, [changes[name] for name in some])
        errors |= dict.fromkeys(some, outcome)
    results: Any = (AlterUserScramCredentialsResult(name, *error) for name, error in errors.items())
    if len(errors) <= SLICE_STEPS:
        return AlterUserScramCredentialsResponse(results=list(results))
    ready: Any = yield from encoded_in_slices(results, request.version)
    return AlterUserScramCredentialsResponse(results=ready)


def _altering(node: Core, changes: Sequence[Change], now: Millis) -> Planned:
    """The plan to make these changes; it returns their error."""
    rows = [RowChange(key_of(each.name, MECHANISMS[each.mechanism]), _credential(each)) for each in changes]
    try:
        yield RowBatch(rows, (), node.members.guards())
    except StoreError as failed:
        node.notes(f"SCRAM credentials could not be kept: {failed}")
        return error_of(failed), str(failed)
    return VALID


def _credential(asked: Change) -> ScramCredential | None:
    """The credential that is stored after this change; None if the credential is removed."""
    if isinstance(asked, ScramCredentialDeletion):
        return None
    keys = keys_of(MECHANISMS[asked.mechanism], bytes(asked.salted_password))
    return ScramCredential(bytes(asked.salt), *keys, asked.iterations)


def _error(node: Core, asked: Change) -> _Error:
    """Why this change is refused, if it is the only one of its user."""
    if not asked.name:
        return NO_NAME
    if asked.mechanism not in MECHANISMS:
        return NO_MECHANISM
    if isinstance(asked, ScramCredentialDeletion):
        known = node.image[CREDENTIALS].get(asked.name, {})
        return VALID if MECHANISMS[asked.mechanism] in known else NOT_THERE
    if asked.iterations < ITERATIONS_MIN:
        return TOO_FEW
    return TOO_MANY if asked.iterations > ITERATIONS_MAX else VALID
