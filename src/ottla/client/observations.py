"""Asks Ottla's nodes what they remember of their clients, groups and configs (docs/private-requests.md)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from ottla.client.client import Client
from ottla.client.errors import BrokerError, ClientError, UnsupportedVersionError
from ottla.client.private_requests import ask_nodes
from ottla.protocol.apis import ApiKey
from ottla.protocol.messages.describe_observations import (
    ConfigChange,
    DescribeObservationsRequest,
    DescribeObservationsResponse,
)
from ottla.protocol.private_requests import CONFIG_VALUE_MAX, Lists

Answers = dict[int, DescribeObservationsResponse | ClientError]
_CONFIGS_SINCE: Final = 1
_ISR_SINCE: Final = 1

EVERYTHING: Final = DescribeObservationsRequest(None)
"""Asks a node for all that it remembers."""


def observations(client: Client, node_ids: Iterable[int], group_id: str | None = None) -> Answers:
    """The answer of each node, or its error: UnsupportedVersionError if it remembers nothing, BrokerError if the user
    may not describe the cluster.

    `group_id`: only why this group changed, which needs the right to describe the group.
    """
    return _answers(client, node_ids, DescribeObservationsRequest(group_id))


def is_of_earlier_version(client: Client, node_id: int) -> bool:
    """Whether a node that answers remembers neither changes of in-sync replicas nor of configs, by its list of
    requests; False without a list. Raises ClientError."""
    served = client.broker(node_id).private
    return served is not None and served.get(ApiKey.DESCRIBE_OBSERVATIONS, (0, 0))[1] < _ISR_SINCE


def _answers(client: Client, node_ids: Iterable[int], request: DescribeObservationsRequest, least: int = 0) -> Answers:
    answers = ask_nodes(client, dict.fromkeys(node_ids, request), least)
    return {node_id: _refused(each) or each for node_id, each in answers.items()}


def _refused(answer: DescribeObservationsResponse | ClientError) -> BrokerError | None:
    if isinstance(answer, ClientError) or not answer.error_code:
        return None
    return BrokerError(answer.error_code, "DescribeObservations", answer.error_message)


# ---- replicas ------------------------------------------------------------------------------------------------------


def replicas_seen(client: Client, node_ids: Iterable[int]) -> Answers:
    """Which replicas left the in-sync replicas of the partitions that each node has led, and how far its followers are
    behind now, or the node's error. Needs the right to describe the cluster."""
    request = DescribeObservationsRequest(lists=Lists.ISR_CHANGES | Lists.FOLLOWERS)
    return _answers(client, node_ids, request, _ISR_SINCE)


# ---- changes of configs --------------------------------------------------------------------------------------------


class ConfigHistory(NamedTuple):
    """The changes of configs that nodes remember, newest first. `silent`: nodes that do not remember any, because they
    are not Ottla's, or of an earlier version. `failed`: nodes that did not answer, and why."""

    changes: tuple[ConfigChange, ...]
    silent: tuple[int, ...] = ()
    failed: tuple[tuple[int, ClientError], ...] = ()

    def author(self, name: str, value: str | None) -> ConfigChange | None:
        """The change that gave a config of the only resource this value; None if no node remembers it. `value`: None
        for a value that the user may not see."""
        last = next((each for each in self.changes if each.name == name), None)
        if last is None or last.new_value is None:
            return None
        return last if value is None or is_remembered(last.new_value, value) else None


def is_remembered(remembered: str, value: str) -> bool:
    """Whether this is the value that a node remembers. It remembers the beginning of what the client sent; the cluster
    shows it without spaces around it."""
    return remembered.strip() == value[:CONFIG_VALUE_MAX].strip()


def config_history(
    client: Client, node_ids: Iterable[int], resource_type: int = 0, resource_name: str | None = None
) -> ConfigHistory:
    """Return the changes of configs, of one resource or of all, with their authors and times. Needs the right to
    describe the configs of that resource, or the cluster and the configs. Raises BrokerError if the user lacks it."""
    request = DescribeObservationsRequest(None, resource_type, resource_name, Lists.CONFIG_CHANGES)
    changes: list[ConfigChange] = []
    silent: list[int] = []
    failed: list[tuple[int, ClientError]] = []
    for node_id, answer in _answers(client, node_ids, request, _CONFIGS_SINCE).items():
        if isinstance(answer, UnsupportedVersionError):
            silent.append(node_id)
        elif isinstance(answer, BrokerError):
            raise answer
        elif isinstance(answer, ClientError):
            failed.append((node_id, answer))
        else:
            changes += answer.config_changes
    newest_first = sorted(reversed(changes), key=lambda each: each.at_ms, reverse=True)
    return ConfigHistory(tuple(newest_first), tuple(silent), tuple(failed))
