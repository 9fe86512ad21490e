"""Lists the entries of every shard of a coordinator, in slices: ListGroups and ListTransactions.

It reads long filters in slices and merges the shards' lists.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Generator
from functools import partial
from typing import Any, Final

from ottla.broker.api.group_calls import call_of
from ottla.broker.coordinators.shards import CoordinatorRequest, ShardHost
from ottla.broker.requests import Request
from ottla.broker.slices import SLICE_STEPS, EncodedStructs, SubRequest
from ottla.protocol.errors import ErrorCode
from ottla.protocol.wire import Message

NAMES_AT_ONCE: Final = 5_000
"""Names of a filter per slice: reading one takes a microsecond."""


def sorted_out(
    names: list[str], known: Container[str], meant: Callable[[str], str] = str
) -> Generator[None, Any, tuple[list[str], list[str]]]:
    """Split a filter's names into the `known` ones, each once and as normalized by `meant`, and the others unchanged;
    in slices."""
    found: dict[str, None] = {}
    unknown: list[str] = []
    for first in range(0, len(names), NAMES_AT_ONCE):
        if first:
            yield
        for name in names[first : first + NAMES_AT_ONCE]:
            if meant(name) in known:
                found[meant(name)] = None
            else:
                unknown.append(name)
    return list(found), unknown


def listed_in_slices(
    host: ShardHost, request: Request, body: Message, listed: str, may_see: Callable[[Any], bool]
) -> Generator[SubRequest | None, Any, Any]:
    """The entries of all shards of `host`, encoded: the field `listed` of their answers to `body`, as far as the client
    may see it; or an ErrorCode.

    A shard that is not on this node has no entries. A shard that is loading makes the list impossible, as does a node
    that no longer knows which shards it has.
    """
    told = EncodedStructs(request.version)
    steps = 0
    for index in host.active():
        reply = yield SubRequest(request, body, partial(_ask, host, index), is_light=True)
        if reply.error_code == ErrorCode.NONE:
            found: list[Any] = getattr(reply, listed)
            for first in range(0, len(found), SLICE_STEPS):
                some = found[first : first + SLICE_STEPS]
                told.add(filter(may_see, some))
                steps += len(some)
                if len(found) > SLICE_STEPS:
                    steps = 0
                    yield
        elif reply.error_code != ErrorCode.NOT_COORDINATOR:
            return ErrorCode(reply.error_code)
        steps += 1
        if steps >= SLICE_STEPS:
            steps = 0
            yield
    return ErrorCode.COORDINATOR_NOT_AVAILABLE if host.is_suspended else told


def _ask(host: ShardHost, index: int, piece: Request) -> Any:
    return host.submit(piece.now, piece, CoordinatorRequest([(index, call_of(piece))]))
