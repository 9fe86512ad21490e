"""UpdateFeatures, key 57, versions 0 to 2: raise or lower the levels of the cluster's features.

The controller checks every change, and writes all of them at once, or none (one fault fails all). A level that some
registered node does not support, alive or not, is refused, and the answer names that node.

If a level turns a function off, its requests are refused from the next one on, and ApiVersions shows that. Members of
groups and open transactions are left to their coordinators, as in Kafka.

Versions: 1 kinds of change and trial runs (KIP-778; before, levels only rise), 2 one error for all instead of one for
each.

Not supported: features of KRaft (`metadata.version`, `kraft.version`), and those of functions that do not exist here.

Source: FeatureControlManager.updateFeatures, QuorumFeatures; KIP-584, KIP-1022.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.broker.api_spec import ApiSpec, Forwarding
from ottla.broker.cluster.members import error_of
from ottla.broker.cluster.metadata import Planned, RowBatch, RowChange
from ottla.broker.effects import Parked
from ottla.broker.requests import Request
from ottla.broker.slices import Work
from ottla.metadata.features import FEATURES, FEATURES_KEY, HIGHEST, FeaturesRecord
from ottla.metadata.store import ABSENT, StoreError
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.UPDATE_FEATURES,
    versions=(0, 2),
    acl=((Operation.ALTER, ResourceType.CLUSTER),),
    forwarding=Forwarding.WHOLE,
)


UPGRADE: Final = 1
SAFE_DOWNGRADE: Final = 2
UNSAFE_DOWNGRADE: Final = 3
_ONE_ERROR_SINCE: Final = 2


def handle(node: Core, request: Request) -> UpdateFeaturesResponse | Parked:
    if not node.access.on_cluster(request, Operation.ALTER):
        denied = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return refused(request, denied, denied.message)
    return node.slices.begin(request, _answer(node, request), is_long=False)


def refused(request: Request, error: ErrorCode, sentence: str) -> UpdateFeaturesResponse:
    """The answer if nothing of the request was done, as far as this node knows."""
    return UpdateFeaturesResponse(error_code=error, error_message=sentence)


def _answer(node: Core, request: Request) -> Work:
    body: UpdateFeaturesRequest = request.body
    try:
        fault = yield lambda _: _updating(node, body)
    except StoreError as failed:
        node.notes(f"levels of features could not be changed: {failed}")
        return UpdateFeaturesResponse(error_code=error_of(failed), error_message=str(failed))
    if fault is not None:
        return UpdateFeaturesResponse(
            error_code=ErrorCode.INVALID_UPDATE_VERSION,
            error_message=f"The update failed for all features since the following feature had an error: {fault}",
        )
    names = dict.fromkeys(asked.feature for asked in body.feature_updates) if request.version < _ONE_ERROR_SINCE else ()
    return UpdateFeaturesResponse(
        error_message=None, results=[UpdatableFeatureResult(name, error_message="NONE") for name in names]
    )


def _updating(node: Core, body: UpdateFeaturesRequest) -> Planned:
    """The plan; it returns the reason to refuse these changes, None if there is none."""
    changes = {asked.feature: asked for asked in body.feature_updates}
    faults = (_fault(node, asked) for asked in changes.values())
    fault = next((each for each in faults if each is not None), None)
    known = node.image[FEATURES] or FeaturesRecord({}, ABSENT)
    levels = {**known.levels, **{name: asked.max_version_level for name, asked in changes.items()}}
    if fault is None and levels != known.levels and not body.validate_only:
        yield RowBatch([RowChange(FEATURES_KEY, FeaturesRecord(levels), known.version)], (), node.members.guards())
        node.notes(f"levels of features: {', '.join(f'{name} {level}' for name, level in sorted(levels.items()))}")
    return fault


def _fault(node: Core, asked: FeatureUpdateKey) -> str | None:
    """The reason to refuse this change, in Kafka's words; None if there is none."""
    name, level = asked.feature, asked.max_version_level
    highest = HIGHEST.get(name, 0)
    current = node.image.level_of(name) if name in HIGHEST else 0
    if asked.upgrade_type not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        why = "The controller does not support the given upgrade type."
    elif level < 0:
        why = "A feature version cannot be less than 0."
    elif level > highest and not highest:
        why = f"Local controller {node.node_id} does not support this feature."
    elif level > highest:
        why = f"Local controller {node.node_id} only supports versions 0-{highest}"
    elif (behind := _node_behind(node, name, level)) is not None:
        why = behind
    elif level < current and asked.upgrade_type == UPGRADE:
        why = (
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe "
            "downgrade."
        )
    elif level > current and asked.upgrade_type != UPGRADE:
        why = "Can't downgrade to a newer version."
    elif not highest:
        why = f"Feature {name} not found."
    else:
        return None
    return f"Invalid update version {level} for feature {name}. {why}"


def _node_behind(node: Core, name: str, level: int) -> str | None:
    """The registered node that does not support this level, in Kafka's words; None if all do."""
    for node_id, record in sorted(node.image.nodes.items(), key=lambda each: int(each[0])):
        highest = record.features.get(name, 0)
        if level > highest:
            supports = f"only supports versions 0-{highest}" if highest else "does not support this feature."
            return f"Broker {node_id} {supports}"
    return None
