"""Asks coordinators in several rounds for one request, where each question depends on the previous answers.

A handler writes the questions as a generator that yields `Round`s, is sent their replies, and returns the answer. The
next round begins when all replies are in, at once or later.

    def work(node, request):
        (group,) = yield Round(node.coordinators.groups, [(index, call)])
        states = yield Round(node.coordinators.share_state, calls)
        return Answer(...)

Once begun, the work runs to its last round even if the client disconnects, so that nothing is left half done. A round
of many calls is sent in slices, with other requests in between (`slices`). A `Change` of the metadata is a step like a
round; the generator is sent what its plan returned.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias

from ottla.broker import slices
from ottla.broker.channel import NODE_CHANNEL
from ottla.broker.cluster.metadata import Change
from ottla.broker.coordinators.shards import CoordinatorRequest, ShardHost
from ottla.broker.requests import Request
from ottla.machine import Call

CALLS_AT_ONCE: Final = 100
"""A call that writes takes 40 us."""


class Round(NamedTuple):
    """Calls to shards of one host; the replies come back in the same order."""

    host: ShardHost
    calls: Iterable[tuple[int, Call]]


Work: TypeAlias = Generator[Round | slices.SubRequest | Change | None, Any, Any]
"""None lets other requests have their turn; it gets no replies."""


class _RoundRequest(CoordinatorRequest):
    """Calls of one round on their way."""

    __slots__ = ()
    goes_elsewhere = True

    def finish(self, request: Request) -> list[Any]:
        return self.replies


def ask_in_rounds(turns: slices.Slices, request: Request, work: Work) -> Any:
    """Let `work` answer the request: at once if every reply is immediate, and there are few."""
    return turns.begin(request, _in_turns(request, work), is_long=False, outlives=True)


def _in_turns(request: Request, work: Work) -> slices.Work:
    asking = Request(NODE_CHANNEL, request.api_key, request.version, 0, None, request.now, request.body)
    try:
        step = next(work)
        while True:
            if step is not None and not isinstance(step, Round):
                step = work.send((yield step))
                continue
            replies: list[Any] = []
            if step is None:
                yield
            host, calls = (None, ()) if step is None else step
            calls = iter(calls)
            while host is not None and (some := list(islice(calls, CALLS_AT_ONCE))):
                serve = partial(_ask, host, some)
                replies += yield slices.SubRequest(asking, request.body, serve, is_light=len(some) < CALLS_AT_ONCE)
            step = work.send(replies)
    except StopIteration as done:
        return done.value


def _ask(host: ShardHost, calls: list[tuple[int, Call]], request: Request) -> Any:
    return host.submit(request.now, request, _RoundRequest(calls))
