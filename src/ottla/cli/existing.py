"""Checks whether a named topic, broker or group exists.

The requests must not create what they ask for. A metadata request for one topic by name would create it on a cluster
with automatic topic creation; DescribeTopics and a list of all topics do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.connection import REQUEST_TIMEOUT_S, plain_errors
from ottla.cli.output import CommandError, UsageError

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from ottla.client import Client


PARTITIONS_MAX = 100_000
REPLICAS_MAX = 10_000
"""librdkafka's maximum number of replicas in a request to create a topic."""

INTERNAL = {
    "__consumer_offsets": "the committed offsets of every consumer group",
    "__share_group_state": "where every share group stands",
    "__transaction_state": "the transactions of every producer",
    "__cluster_metadata": "what the cluster knows of itself",
}
"""The contents of Kafka's own topics, by name."""

Internal = Annotated[bool, typer.Option("--internal", help="Allow an internal topic of the cluster.")]


def refuse_internal(topics: Iterable[str], done: str, meant: str | None = "--internal") -> None:
    """Raise CommandError if one of the topics is internal: `done` to it, other data would be lost."""
    for name in topics:
        if name in INTERNAL:
            way = f" Add {meant} if that is what you want." if meant else ""
            raise CommandError(f"{name} was not {done}: it keeps {INTERNAL[name]}.{way}")


def described_topics(admin: AdminClient, names: Iterable[str]) -> dict[str, Any]:
    """confluent-kafka's TopicDescription of each topic. Raises CommandError naming every missing topic."""
    from confluent_kafka import KafkaError, KafkaException, TopicCollection

    wanted = sorted(set(names))
    if not wanted:
        return {}
    found: dict[str, Any] = {}
    missing: list[str] = []
    with plain_errors():
        asked = admin.describe_topics(TopicCollection(wanted), request_timeout=REQUEST_TIMEOUT_S)
        for name, future in asked.items():
            try:
                found[name] = future.result(REQUEST_TIMEOUT_S)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
                missing.append(name)
    if missing:
        which = f"is no topic {missing[0]}" if len(missing) == 1 else f"are no topics {', '.join(missing)}"
        raise CommandError(f"There {which}. `ottla topics list` shows the existing ones.")
    return found


def require_topics(topics: Sequence[str], there: Iterable[str]) -> None:
    """Raise CommandError if one of these topics does not exist."""
    missing = sorted(set(topics) - set(there))
    if missing:
        raise CommandError(f"There is no topic {missing[0]}. `ottla topics list` shows the existing ones.")


def partition_count(admin: AdminClient, topic: str) -> int:
    """How many partitions a topic has. Raises CommandError if it does not exist."""
    return len(described_topics(admin, [topic])[topic].partitions)


def require_broker(admin: AdminClient, name: str) -> None:
    """Raise CommandError if the cluster has no broker with this id: requests to it would wait."""
    if not (name.isascii() and name.isdigit()):
        raise UsageError(f"A broker is named by its id, a number, not {name!r}.")
    with plain_errors():
        cluster = admin.describe_cluster(request_timeout=REQUEST_TIMEOUT_S).result(REQUEST_TIMEOUT_S)
    ids = sorted(node.id for node in cluster.nodes)
    if int(name) not in ids:
        has = f"broker {ids[0]}" if len(ids) == 1 else f"brokers {', '.join(map(str, ids))}"
        raise CommandError(f"There is no broker {name}: the cluster has {has}.")


def group_exists(asked: Client, name: str) -> bool:
    """Whether the cluster has a group of this name, of any type."""
    from ottla.client.share_groups import list_groups

    return any(group == name for group, _ in list_groups(asked))
