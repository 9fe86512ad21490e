"""Envelope, key 58, version 0: a client's request that another node forwards to the controller.

The handler serves the inner request as if its client had sent it here, with its principal, and returns the complete
inner answer. Only nodes of the cluster are served, which have proved that, and only requests that the controller
serves. A node that is not the controller says so, and the sender looks for the controller. Clients do not use this API:
ApiVersions does not list it.

Versions: only one. Not supported: delegation tokens of the client.

Source: Kafka's ControllerApis.handleEnvelopeRequest, EnvelopeUtils.scala; KIP-590.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ottla.broker.api_spec import ApiSpec, Forwarding
from ottla.broker.cluster.envelopes import unwrapped
from ottla.broker.requests import Request
from ottla.broker.served import Served, load
from ottla.broker.slices import SubRequest, Work
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode, MalformedFrameError
from ottla.protocol.framing import RequestHeader, encode_response
from ottla.protocol.messages.envelope import EnvelopeRequest, EnvelopeResponse

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.ENVELOPE,
    versions=(0, 0),
    between_nodes=True,
    internal=True,
)


_SERVED: dict[int, Served] = load(internal=False)


def handle(node: Core, request: Request) -> Any:
    if not node.peers.trusts(request.identity, request.client_id):
        return _refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if not node.members.is_controller:
        return _refused(ErrorCode.NOT_CONTROLLER)
    envelope: EnvelopeRequest = request.body
    try:
        inside = unwrapped(request.now, envelope, request.channel, _decoded)
    except MalformedFrameError as error:
        node.notes(f"a request that another node hands on can't be served: {error}")
        return _refused(ErrorCode.INVALID_REQUEST)
    return node.slices.begin(request, _answer(node, inside), is_long=False)


def _answer(node: Core, inside: Request) -> Work:
    answer = yield SubRequest(inside, inside.body, partial(_SERVED[inside.api_key].handle, node))
    header = RequestHeader(inside.api_key, inside.version, inside.correlation_id, inside.client_id)
    return EnvelopeResponse(bytes(memoryview(encode_response(header, answer))[4:]))


def _decoded(api_key: int, frame: memoryview, position: int, version: int) -> Any:
    served = _SERVED.get(api_key)
    if (
        served is None
        or served.spec.forwarding is Forwarding.NEVER
        or not served.min_version <= version <= served.max_version
    ):
        raise MalformedFrameError(f"API key {api_key} in version {version} is not handed on")
    return served.decode(frame, position, version)


def _refused(error: ErrorCode) -> EnvelopeResponse:
    return EnvelopeResponse(None, error)
