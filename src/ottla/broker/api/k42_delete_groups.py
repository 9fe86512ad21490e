"""DeleteGroups, key 42, versions 0 to 2: delete groups without members, with their offsets.

The state of a share group's partitions is deleted first, so that a later group of that name starts empty. Then the
groups themselves are deleted.

Versions: 1 throttle_time_ms, 2 flexible.

Not supported: nothing.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ottla.broker.api.group_calls import by_shard, call_of
from ottla.broker.api.share_offsets import deletions, error_of, question, shares_of
from ottla.broker.api_spec import ApiSpec
from ottla.broker.coordinators.rounds import Round, Work, ask_in_rounds
from ottla.broker.requests import Request
from ottla.broker.slices import SLICE_STEPS, in_pieces
from ottla.groups.share.admin import BeginDeletion, ShareAnswer
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.DELETE_GROUPS,
    versions=(0, 2),
    acl=((Operation.DELETE, ResourceType.GROUP),),
    needs_lease=True,
)


def handle(node: Core, request: Request) -> Any:
    names = request.body.groups_names
    if len(names) > SLICE_STEPS:
        request.body.groups_names = list(dict.fromkeys(names))
        return node.slices.begin(
            request, in_pieces(request, partial(_delete_all, node), "groups_names", "results"), is_long=True
        )
    return _delete_all(node, request)


def _delete_all(node: Core, request: Request) -> Any:
    return ask_in_rounds(node.slices, request, _delete(node, request))


def _delete(node: Core, request: Request) -> Work:
    allowed: list[str] = []
    failed: dict[str, ErrorCode] = {}
    for group_id in dict.fromkeys(request.body.groups_names):
        if node.access.on_group(request, Operation.DELETE, group_id):
            allowed.append(group_id)
        else:
            failed[group_id] = ErrorCode.GROUP_AUTHORIZATION_FAILED
    answers: list[ShareAnswer] = yield Round(
        node.coordinators.groups, [question(node, BeginDeletion(group_id, None)) for group_id in allowed]
    )
    for group_id, known in zip(allowed, answers, strict=True):
        places = shares_of(node, known.shares, dict.fromkeys(topic_id for topic_id, _ in known.shares.topics()))
        replies = yield from deletions(node, request, group_id, places)
        errors = [error for reply in replies if (error := error_of(reply))]
        if errors:
            failed[group_id] = errors[0]
        elif known.error is ErrorCode.NONE:
            node.coordinators.share.forget(request.now, group_id)
    shards = by_shard(node, (group_id for group_id in allowed if group_id not in failed))
    calls = [(at, call_of(request, DeleteGroupsRequest(groups_names=groups))) for at, groups in shards.items()]
    replies = yield Round(node.coordinators.groups, calls)
    results = [result for reply in replies for result in reply.results]
    results += [DeletableGroupResult(group_id, error) for group_id, error in failed.items()]
    return DeleteGroupsResponse(results=results)
