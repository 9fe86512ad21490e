"""Names the resources that have a configuration, decides which clients may see and change them, and changes them.

Shared by DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources. A change is computed as the
resource's whole new set of overrides (text by name), checked, and then stored by `Topics` or `LiveSettings`.

Sources: Kafka's ConfigAdminManager.scala, ConfigurationControlManager.java, ControllerConfigurationValidator.scala; the
sentences are Kafka's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ottla.broker.cluster.members import error_of
from ottla.broker.cluster.metadata import Planned
from ottla.broker.config.broker_table import BROKER_CONFIGS
from ottla.broker.config.key import ConfigKey, ConfigRefusedError, Kind, UnknownConfigError, printed
from ottla.broker.config.live import EVERY_BROKER
from ottla.broker.config.share_groups import PAUSED_BY, PAUSED_SINCE
from ottla.broker.config.topic_table import GROUP_CONFIGS, TOPIC_CONFIGS
from ottla.broker.config.values import appended, check_group, check_topic, group_value, subtracted, topic_value
from ottla.broker.observations.config_changes import Resource
from ottla.broker.security.authorizer import Operation, ResourceType
from ottla.broker.slices import SubRequest, Work
from ottla.machine import Millis
from ottla.metadata.row_kinds import Configs
from ottla.metadata.store import StoreError
from ottla.metadata.topic_names import fault_of
from ottla.metadata.topics import TopicImage
from ottla.protocol.acls import CLUSTER_NAME
from ottla.protocol.config_resources import ConfigResourceType
from ottla.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.broker.core import Core
    from ottla.broker.requests import Request


class Change(IntEnum):
    """AlterConfigOp.OpType."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


RESOURCES_AT_ONCE: Final = 10
"""More of them are a long request. Each is changed with a commit of its own."""
CHANGES_MAX: Final = 2_000
"""More than there are properties, some times over."""
Outcome = tuple[ErrorCode, str | None]
SUCCESS: Final[Outcome] = (ErrorCode.NONE, None)
_ELSEWHERE: Final[Outcome] = (ErrorCode.NOT_CONTROLLER, ErrorCode.NOT_CONTROLLER.message)
_NOTED_BY_NODE: Final = (PAUSED_SINCE, PAUSED_BY)
"""Configs that the node sets beside those that a client changes."""
_SHARED: Final = frozenset((ConfigResourceType.TOPIC, ConfigResourceType.GROUP))
"""Resources that belong to no node."""
Changes = Sequence[tuple[str, int, str | None]]
"""(property, Change, value) as a client sends them."""


class ResourceRefusedError(Exception):
    """The error for a client whose resource may not, or can not, be changed or described."""

    def __init__(self, error_code: ErrorCode, sentence: str | None = None) -> None:
        super().__init__(sentence or error_code.message)
        self.error_code = error_code
        self.sentence = sentence or error_code.message


@dataclass(frozen=True, slots=True)
class Configurable:
    """One resource whose configuration can be changed: its properties, its present overrides, and how to change
    them."""

    keys: Mapping[str, ConfigKey]
    overrides: Configs
    current: Callable[[str], str | None]
    check: Callable[[dict[str, str]], object]
    keep: Callable[[dict[str, str]], Planned]
    invalid: ErrorCode
    """The error for a value that can't be."""

    def is_sensitive(self, name: str) -> bool:
        """Whether no client may see the value. Also that of a config which this version does not know."""
        key = self.keys.get(name)
        return key is None or key.sensitive


def denial(
    node: Core, request: Request, operation: Operation, resource_type: int, name: str, *, quietly: bool = False
) -> ErrorCode | None:
    """The error if this client may not do this to the resource's configuration; None if it may. `quietly`: no denial of
    what the client asked for, see `Access`."""
    match resource_type:
        case ConfigResourceType.TOPIC:
            needed, failed = (ResourceType.TOPIC, name), ErrorCode.TOPIC_AUTHORIZATION_FAILED
        case ConfigResourceType.GROUP:
            needed, failed = (ResourceType.GROUP, name), ErrorCode.GROUP_AUTHORIZATION_FAILED
        case _:
            needed, failed = (ResourceType.CLUSTER, CLUSTER_NAME), ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    access = node.access.quiet if quietly else node.access
    return None if access.allows(request.identity, operation, *needed, request) else failed


def alter_all(
    node: Core,
    request: Request,
    changes_of: Callable[[Any], Changes],
    *,
    replace: bool,
) -> Work:
    """Change each resource of the request separately. Returns one Outcome for each.

    `changes_of`: the changes of a resource; `replace`: properties that the changes do not name are reset. The
    controller changes resources that belong to no node. If another node becomes the controller meanwhile, the request
    of a client is handed on, but not that of another node, which has sent it again.
    """
    resources, validate_only = request.body.resources, request.body.validate_only
    times = Counter((resource.resource_type, resource.resource_name) for resource in resources)
    outcomes: list[Outcome] = []
    for resource in resources:
        resource_type, name = resource.resource_type, resource.resource_name
        if times[resource_type, name] > 1:
            outcomes.append((ErrorCode.INVALID_REQUEST, "Each resource must appear at most once."))
        elif resource_type in _SHARED and not node.members.is_controller:
            outcomes.append(_ELSEWHERE)
        else:
            changes = changes_of(resource)
            altering = partial(
                _altering, node, request, resource_type, name, changes, replace=replace, validate_only=validate_only
            )
            outcomes.append((yield altering))
    handed_on = [at for at, (error, _) in enumerate(outcomes) if error == ErrorCode.NOT_CONTROLLER]
    if handed_on and not request.tries:
        body = type(request.body)(resources=[resources[at] for at in handed_on], validate_only=validate_only)
        answer = yield SubRequest(request, body, node.forwarding.forward)
        for at, told in zip(handed_on, answer.responses, strict=True):
            outcomes[at] = ErrorCode(told.error_code), told.error_message
    return outcomes


def _altering(
    node: Core,
    request: Request,
    resource_type: int,
    name: str,
    changes: Changes,
    now: Millis,
    *,
    replace: bool,
    validate_only: bool,
) -> Planned:
    """The plan to change one resource; it ends with the Outcome."""
    try:
        _check_shape(changes, replace)
        if resource_type not in list(ConfigResourceType):
            raise ResourceRefusedError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource_type}")
        denied = denial(node, request, Operation.ALTER_CONFIGS, resource_type, name)
        if denied is not None:
            raise ResourceRefusedError(denied)
        resource = _find(node, request, now, resource_type, name, changes, replace)
        overrides = _changed(resource, changes, replace)
        try:
            resource.check(overrides)
        except UnknownConfigError as refused:
            raise ResourceRefusedError(ErrorCode.INVALID_CONFIG, str(refused)) from refused
        except ConfigRefusedError as refused:
            raise ResourceRefusedError(resource.invalid, str(refused)) from refused
        if not validate_only and overrides != resource.overrides:
            yield from resource.keep(overrides)
            before, after = (
                {name: text for name, text in each.items() if name not in _NOTED_BY_NODE}
                for each in (resource.overrides, overrides)
            )
            node.observations.configured(
                now, request, Resource(resource_type, name), before, after, resource.is_sensitive
            )
    except ResourceRefusedError as refused:
        return refused.error_code, refused.sentence
    except StoreError as failed:
        node.notes(f"a configuration could not be kept: {failed}")
        return error_of(failed), str(failed)
    return SUCCESS


def _check_shape(changes: Changes, replace: bool) -> None:
    if len(changes) > CHANGES_MAX:
        raise ResourceRefusedError(ErrorCode.INVALID_REQUEST, f"More than {CHANGES_MAX} changes of one configuration.")
    if len({name for name, _, _ in changes}) < len(changes):
        raise ResourceRefusedError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    missing = [name for name, change, value in changes if value is None and (replace or change != Change.DELETE)]
    if missing:
        raise ResourceRefusedError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(missing)}")


def _find(
    node: Core, request: Request, now: Millis, resource_type: int, name: str, changes: Changes, replace: bool
) -> Configurable:
    match resource_type:
        case ConfigResourceType.TOPIC:
            return _topic(node, name)
        case ConfigResourceType.BROKER:
            return _broker(node, name)
        case ConfigResourceType.GROUP:
            return _group(node, request, now, name)
        case ConfigResourceType.CLIENT_METRICS:
            raise ResourceRefusedError(ErrorCode.INVALID_REQUEST, "This node does not collect client metrics.")
        case _ if replace:
            raise ResourceRefusedError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource_type}")
        case _:
            broker_id_of(node, name, "expected {}, but received {}")
            raise ResourceRefusedError(
                ErrorCode.INVALID_CONFIG, f"Logger {changes[0][0] if changes else ''} does not exist!"
            )


def existing_topic(node: Core, name: str) -> TopicImage:
    """Raises ResourceRefusedError."""
    fault = fault_of(name)
    if fault is not None:
        raise ResourceRefusedError(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
    topic = node.image.topics.get(name)
    if topic is None:
        raise ResourceRefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
    return topic


def broker_id_of(node: Core, name: str, expected: str) -> int:
    """This node's id, if `name` is it. Raises ResourceRefusedError; `expected` is the end of the message."""
    try:
        number = int(name)
    except ValueError:
        raise ResourceRefusedError(
            ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {name}"
        ) from None
    if number != node.node_id:
        raise ResourceRefusedError(
            ErrorCode.INVALID_REQUEST, "Unexpected broker id, " + expected.format(node.node_id, name)
        )
    return number


def _topic(node: Core, name: str) -> Configurable:
    if not name:
        raise ResourceRefusedError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
    topic = existing_topic(node, name)
    return Configurable(
        TOPIC_CONFIGS,
        topic.configs,
        lambda key: printed(topic_value(node.settings, topic.configs, key)),
        lambda overrides: check_topic(overrides, node.settings),
        lambda overrides: node.topics.configuring(topic, overrides),
        ErrorCode.INVALID_CONFIG,
    )


def _broker(node: Core, name: str) -> Configurable:
    entity = EVERY_BROKER if name == EVERY_BROKER else str(broker_id_of(node, name, "expected {}, but received {}"))
    settings = node.settings
    return Configurable(
        BROKER_CONFIGS,
        settings.of_broker(entity),
        lambda key: printed(settings[key]),
        lambda overrides: settings.check_broker(entity, overrides),
        lambda overrides: settings.altering_broker(entity, overrides),
        ErrorCode.INVALID_REQUEST,
    )


def _group(node: Core, request: Request, now: Millis, name: str) -> Configurable:
    if not name:
        raise ResourceRefusedError(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
    settings = node.settings
    overrides = settings.of_group(name)
    by = f"{request.client_id or 'a client'} at {request.identity.address.client_host}"
    return Configurable(
        GROUP_CONFIGS,
        overrides,
        lambda key: printed(group_value(settings, overrides, key)),
        lambda wanted: check_group(wanted, settings, overrides),
        lambda wanted: settings.altering_group(now, name, wanted, by, node.members.guards()),
        ErrorCode.INVALID_CONFIG,
    )


def _changed(resource: Configurable, changes: Changes, replace: bool) -> dict[str, str]:
    """The overrides after these changes."""
    overrides = {} if replace else dict(resource.overrides)
    for name, change, value in changes:
        if replace or change == Change.SET:
            assert value is not None
            overrides[name] = value
        elif change == Change.DELETE:
            overrides.pop(name, None)
        elif change in (Change.APPEND, Change.SUBTRACT):
            assert value is not None
            key = resource.keys.get(name)
            if key is None or key.kind is not Kind.LIST:
                word = Change(change).name
                raise ResourceRefusedError(
                    ErrorCode.INVALID_CONFIG, f"Can't {word} to key {name} because its type is not LIST."
                )
            current = overrides.get(name)
            base = current if current is not None else resource.current(name) or ""
            overrides[name] = appended(base, value) if change == Change.APPEND else subtracted(base, value)
        else:
            raise ResourceRefusedError(ErrorCode.INVALID_REQUEST, f"Unknown operation {change} for config {name}.")
    return overrides
