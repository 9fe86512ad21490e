"""ApiVersions, key 18, versions 0 to 4: which APIs, versions and features this node has.

The handler advertises exactly the specs of the handlers in `broker/api`. An unknown version is answered as version 0
with UNSUPPORTED_VERSION and this API's own range, so that the client can ask again (KIP-511). From version 3 on the
client's name and version must be well-formed, otherwise INVALID_REQUEST.

Versions: 1 throttle time, 3 flexible, client name, features; 4 features may begin at version 0.

Not supported: nothing.

Source: ApiVersionsRequest.java, ApiVersionManager.scala, KIP-584.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ottla.broker.api_spec import ApiSpec, RequestSize
from ottla.broker.channel import Channel
from ottla.broker.effects import Part
from ottla.broker.served import ADVERTISED
from ottla.machine import Millis
from ottla.metadata.features import HIGHEST
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.framing import RequestHeader, decode_request_header, encode_response
from ottla.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.API_VERSIONS,
    versions=(0, 4),
    size=RequestSize.READ_BY_HANDLER,
    before_authentication=True,
    answers_any_version=True,
)

_CLIENT_NAME_SINCE = 3
_ZERO_FEATURES_SINCE = 4

_CLIENT_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?", re.ASCII)


def receive(
    node: Core, now: Millis, channel: Channel, version: int, correlation_id: int, frame: memoryview
) -> list[Part]:
    """Serve one ApiVersions frame; see `Node.receive`. Raises MalformedFrameError."""
    low, high = SPEC.versions
    if not low <= version <= high:
        own = ApiVersion(SPEC.key, low, high)
        answer = ApiVersionsResponse(ErrorCode.UNSUPPORTED_VERSION, [own])
        answer.throttle_time_ms = node.throttle.charge(now, channel, None)
        return [encode_response(RequestHeader(SPEC.key, 0, correlation_id), answer)]
    header, position = decode_request_header(frame)
    node.observations.named(channel, header.client_id or "")
    request, _ = ApiVersionsRequest.decode(frame, position, version)
    if version >= _CLIENT_NAME_SINCE and not _named(request):
        answer = ApiVersionsResponse(ErrorCode.INVALID_REQUEST)
    else:
        answer = advertised(node, version)
        channel.software = f"{request.client_software_name} {request.client_software_version}".strip()
    answer.throttle_time_ms = node.throttle.charge(now, channel, header.client_id)
    return [encode_response(header, answer)]


def advertised(node: Core, version: int) -> ApiVersionsResponse:
    """The APIs and features of this node, as far as `version` can express them."""
    # A feature whose lowest level is 0 is left out of older answers, which can't express it (KIP-584).
    supported = [SupportedFeatureKey(name, 0, high) for name, high in HIGHEST.items()]
    levels = {name: node.image.level_of(name) for name in HIGHEST}
    return ApiVersionsResponse(
        api_keys=[ApiVersion(key, *spec.versions) for key, spec in sorted(ADVERTISED.items())],
        supported_features=supported if version >= _ZERO_FEATURES_SINCE else [],
        finalized_features_epoch=node.metadata.followed,
        finalized_features=[FinalizedFeatureKey(name, level, level) for name, level in levels.items() if level > 0],
    )


def _named(request: ApiVersionsRequest) -> bool:
    return (
        _CLIENT_NAME.fullmatch(request.client_software_name) is not None
        and _CLIENT_NAME.fullmatch(request.client_software_version) is not None
    )
