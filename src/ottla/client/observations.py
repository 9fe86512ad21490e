"""Asks Ottla's nodes what they remember of their clients and groups (docs/private-requests.md)."""

from __future__ import annotations

from collections.abc import Iterable

from ottla.client.client import Client
from ottla.client.errors import BrokerError, ClientError
from ottla.client.private_requests import ask_nodes
from ottla.protocol.messages.describe_observations import DescribeObservationsRequest, DescribeObservationsResponse


def observations(
    client: Client, node_ids: Iterable[int], group_id: str | None = None
) -> dict[int, DescribeObservationsResponse | ClientError]:
    """The answer of each node, or its error: UnsupportedVersionError if it remembers nothing, BrokerError if the user
    may not describe the cluster.

    `group_id`: only why this group changed, which needs the right to describe the group.
    """
    answers = ask_nodes(client, {node_id: DescribeObservationsRequest(group_id) for node_id in node_ids})
    return {node_id: _refused(each) or each for node_id, each in answers.items()}


def _refused(answer: DescribeObservationsResponse | ClientError) -> BrokerError | None:
    if isinstance(answer, ClientError) or not answer.error_code:
        return None
    return BrokerError(answer.error_code, "DescribeObservations", answer.error_message)
