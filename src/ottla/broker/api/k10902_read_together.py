"""ReadTogether, key 10902, version 0: several requests that only read, served one after the other in one request.

One of Ottla's own requests (docs/private-requests.md). A program that reads a whole cluster, such as `ottla doctor`,
sends each node about ten requests; with this one it sends one. Each inner request is served, and authorized, as if the
client had sent it alone, in slices of its own. An inner request that is not among `READABLE`, or that does not parse,
gets an error, and the others are served.

A node whose lease is over refuses the inner requests that only a leader or coordinator answers, and serves the others:
what it remembers says what happened to it.

Bounds: `REQUESTS_MAX` inner requests; once their answers have `ANSWER_BYTES_MAX` bytes, the rest get MESSAGE_TOO_LARGE:
ask for these alone.

Not supported: requests that change something, wait, or read records.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from ottla.broker.api_spec import ApiSpec
from ottla.broker.effects import Part
from ottla.broker.requests import Request
from ottla.broker.served import Served
from ottla.broker.slices import SubRequest, Work
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode, MalformedFrameError
from ottla.protocol.framing import RequestHeader, response_body_of
from ottla.protocol.messages.read_together import InnerAnswer, InnerRequest, ReadTogetherRequest, ReadTogetherResponse
from ottla.protocol.private_requests import READABLE
from ottla.protocol.wire import has_elements

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.READ_TOGETHER,
    versions=(0, 0),
    acl=(
        (Operation.DESCRIBE, ResourceType.TOPIC),
        (Operation.READ, ResourceType.TOPIC),
        (Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC),
        (Operation.DESCRIBE, ResourceType.GROUP),
        (Operation.DESCRIBE_CONFIGS, ResourceType.GROUP),
        (Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID),
        (Operation.DESCRIBE, ResourceType.CLUSTER),
        (Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER),
    ),
)


REQUESTS_MAX: Final = 100
ANSWER_BYTES_MAX: Final = 64 << 20
ELEMENTS_MAX: Final = 250_000
"""Topics, partitions and groups that one inner request may name: as many as a request of its own."""


class Inner(SubRequest):
    """One of the requests, with its own API and version."""

    __slots__ = ()

    def __init__(self, node: Core, request: Request, served: Served, version: int, body: Any) -> None:
        super().__init__(request, body, partial(served.handle, node))
        self.api_key = served.key
        self.version = version


def handle(node: Core, request: Request) -> Any:
    body: ReadTogetherRequest = request.body
    if len(body.requests) > REQUESTS_MAX:
        error = ErrorCode.INVALID_REQUEST
        return ReadTogetherResponse(error_code=error, error_message=f"At most {REQUESTS_MAX} requests.", answers=[])
    return node.slices.begin(request, _answer(node, request), is_long=len(body.requests) > 1)


def _answer(node: Core, request: Request) -> Work:
    answers: list[InnerAnswer] = []
    size = 0
    for each in request.body.requests:
        inner = _inner(node, request, each) if size <= ANSWER_BYTES_MAX else ErrorCode.MESSAGE_TOO_LARGE
        if not isinstance(inner, Inner):
            answers.append(InnerAnswer(inner))
            continue
        answer = yield inner
        content = _content(inner, answer)
        size += len(content)
        answers.append(InnerAnswer(content=content))
    return ReadTogetherResponse(answers=answers)


def _inner(node: Core, request: Request, each: InnerRequest) -> Inner | ErrorCode:
    """The request that is to be served, or why it is not."""
    served = node.served.get(each.api_key)
    if served is None or each.api_key not in READABLE:
        return ErrorCode.INVALID_REQUEST
    if not served.min_version <= each.version <= served.max_version:
        return ErrorCode.UNSUPPORTED_VERSION
    try:
        body = served.decode(memoryview(each.content), 0, each.version)
    except MalformedFrameError:
        return ErrorCode.INVALID_REQUEST
    if has_elements(body, ELEMENTS_MAX):
        return ErrorCode.INVALID_REQUEST
    return Inner(node, request, served, each.version, body)


def _content(inner: Inner, answer: Any) -> bytes:
    """The encoded answer, without a header."""
    if isinstance(answer, list):  # it is encoded already, with its header
        header = RequestHeader(inner.api_key, inner.version)
        return response_body_of(header, b"".join(cast("list[bytes]", cast("list[Part]", answer))))
    out = bytearray()
    answer.encode(out, inner.version)
    return bytes(out)
