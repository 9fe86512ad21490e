"""UpdateFeatures, key 57, versions 0 to 2: raise or lower the levels of the cluster's features.

What it does: features stand where they stand. A request that would change nothing succeeds, any other one is refused
(INVALID_UPDATE_VERSION, one fault fails all).

What changed per version: 1 kinds of change and trial runs (KIP-778), 2 one error for all instead of one for each.

What is skipped: other levels of a feature; each has one that works here.

Source: FeatureControlManager.updateFeatures; KIP-584, KIP-1022.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.api.k18_api_versions import FEATURES
from ottla.broker.requests import Request
from ottla.broker.security.authorizer import Operation
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

if TYPE_CHECKING:
    from ottla.broker.node import Node


LEVELS = {name: level for name, _, _, level in FEATURES}
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
_ONE_ERROR_SINCE = 2


def handle(node: Node, request: Request) -> UpdateFeaturesResponse:
    body: UpdateFeaturesRequest = request.body
    if not node.access.on_cluster(request, Operation.ALTER):
        return UpdateFeaturesResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    faults = (_fault(asked) for asked in body.feature_updates)
    fault = next((each for each in faults if each is not None), None)
    if fault is not None:
        return UpdateFeaturesResponse(
            error_code=ErrorCode.INVALID_UPDATE_VERSION,
            error_message=f"The update failed for all features since the following feature had an error: {fault}",
        )
    names = dict.fromkeys(asked.feature for asked in body.feature_updates) if request.version < _ONE_ERROR_SINCE else ()
    return UpdateFeaturesResponse(
        error_message=None, results=[UpdatableFeatureResult(name, error_message="NONE") for name in names]
    )


def _fault(asked: FeatureUpdateKey) -> str | None:
    """Why this change is refused; None where the feature is at that level."""
    if asked.max_version_level < 0:
        why = "A feature version cannot be less than 0."
    elif asked.upgrade_type not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        why = "The controller does not support the given upgrade type."
    elif asked.feature not in LEVELS:
        why = "This node does not support this feature."
    elif asked.max_version_level != LEVELS[asked.feature]:
        why = f"It is at {LEVELS[asked.feature]}, and this version of Ottla has no other level of it."
    else:
        return None
    return f"Invalid update version {asked.max_version_level} for feature {asked.feature}. {why}"
