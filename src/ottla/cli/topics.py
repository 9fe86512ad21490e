"""`ottla topics`: list, describe, create, alter, delete, add-partitions.

Shows topics in the form of Kafka's kafka-topics.sh.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli import existing
from ottla.cli.completing import DeleteConfigs, SetConfigs, TopicConfigs
from ottla.cli.configs import alter_entries, own_entries
from ottla.cli.connection import (
    HERE,
    REQUEST_TIMEOUT_S,
    Cluster,
    Output,
    client_properties,
    complete_topics,
    connect,
    named,
    pairs,
    plain_errors,
    wait,
)
from ottla.cli.existing import PARTITIONS_MAX, REPLICAS_MAX
from ottla.cli.extents import Extent, extents, known_eligible
from ottla.cli.options import with_shared_options
from ottla.cli.output import CommandError, Format, counted, print_done, print_json, print_rows, say, sized
from ottla.cli.replicas.electing import elect_leaders
from ottla.cli.replicas.reassign import reassign
from ottla.cli.resets import Partition

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

app = typer.Typer(help="Create, describe, change and delete topics.", no_args_is_help=True)

PARTITION_COLUMNS = ("TOPIC", "PARTITION", "LEADER", "REPLICAS", "ISR", "ELIGIBLE", "EARLIEST", "LATEST", "SIZE")

Topic = Annotated[
    str, typer.Argument(metavar="TOPIC", callback=named, autocompletion=complete_topics, help="Name of the topic.")
]
Topics = Annotated[
    list[str],
    typer.Argument(metavar="TOPIC...", callback=named, autocompletion=complete_topics, help="Names of topics."),
]
MaybeTopics = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TOPIC...]", callback=named, autocompletion=complete_topics, help="Names of topics (default: all)."
    ),
]


@app.command("list", epilog="Example: ottla topics list --internal --format json")
@with_shared_options
def list_topics(
    internal: Annotated[bool, typer.Option("--internal", help="List internal topics too.")] = False,
    cluster: Cluster = HERE,
    format: Output = Format.TABLE,
) -> None:
    """List the topics of the cluster."""
    found = topics_of(connect(cluster), None, internal)
    rows = [(name, len(topic.partitions), replication_factor(topic)) for name, topic in sorted(found.items())]
    print_rows(("TOPIC", "PARTITIONS", "REPLICATION-FACTOR"), rows, format)


@app.command(epilog="Example: ottla topics describe clicks --bootstrap broker:9092")
@with_shared_options
def describe(
    topics: MaybeTopics = None,
    under_replicated: Annotated[
        bool, typer.Option("--under-replicated", help="Show only partitions with a replica that is not in sync.")
    ] = False,
    unavailable: Annotated[bool, typer.Option("--unavailable", help="Show only partitions without a leader.")] = False,
    cluster: Cluster = HERE,
    format: Output = Format.TABLE,
) -> None:
    """Show the configs of topics, and the leader, replicas, offsets and bytes on disk of each partition.

    Replicas are listed as all, in sync, and others that may lead. Without a topic, show all topics; --under-replicated
    and --unavailable include internal ones.
    """
    admin = connect(cluster)
    found = topics_of(admin, topics or None, internal=bool(topics) or under_replicated or unavailable)
    for name, topic in list(found.items()):
        if under_replicated:
            topic.partitions = [part for part in topic.partitions if len(part.isr) < len(part.replicas)]
        if unavailable:
            topic.partitions = [part for part in topic.partitions if not part.leader]
        if not topic.partitions:
            del found[name]
    configs = own_entries(admin, "topic", list(found))
    leaders = {
        (name, part.id): part.leader.id if part.leader else None
        for name, topic in found.items()
        for part in topic.partitions
    }
    given = client_properties(cluster)
    reach, eligible = extents(admin, given, leaders), known_eligible(given, sorted(found))
    described = [describe_topic(topic, configs[name], reach, eligible) for name, topic in sorted(found.items())]
    if format is Format.JSON:
        print_json(described)
        return
    if under_replicated or unavailable:
        print_rows(PARTITION_COLUMNS, [row for each in described for row in partition_rows(each)], format)
        return
    for each in described:
        settings = ",".join(f"{key}={value}" for key, value in each["configs"].items())
        head = ("TOPIC", "TOPIC-ID", "PARTITION-COUNT", "REPLICATION-FACTOR", "CONFIGS")
        counts = (each["topic"], each["topic_id"], len(each["partitions"]), each["replication_factor"], settings)
        print_rows(head, [counts], format)
        print_rows(PARTITION_COLUMNS, partition_rows(each), format)
        say("")


@app.command(
    epilog="Example: ottla topics create clicks orders --partitions 6 --config retention.ms=86400000 --if-not-exists"
)
@with_shared_options
def create(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", callback=named, help="Names of the new topics.")],
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions",
            "-p",
            min=1,
            max=PARTITIONS_MAX,
            help="Number of partitions (default: num.partitions of the cluster).",
        ),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(
            "--replication-factor",
            "-r",
            min=1,
            max=REPLICAS_MAX,
            help="Replicas of each partition (default: default.replication.factor of the cluster).",
        ),
    ] = None,
    config: TopicConfigs = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Do not fail if a topic exists already.")
    ] = False,
    validate_only: Annotated[
        bool, typer.Option("--validate-only", help="Let the cluster check the request and create nothing.")
    ] = False,
    cluster: Cluster = HERE,
    format: Output = Format.TABLE,
) -> None:
    """Create topics."""
    from confluent_kafka.admin import NewTopic

    configs = pairs(config, "A config")
    verb = "Could create" if validate_only else "Created"
    admin = connect(cluster)
    wanted = topics
    if if_not_exists:
        there = topic_names(admin)
        wanted = [name for name in topics if name not in there]
    with plain_errors():
        new = [NewTopic(name, partitions or -1, replication_factor or -1, config=configs) for name in wanted]
        if new:
            wait(admin.create_topics(new, validate_only=validate_only), verb)
    print_done(f"{verb} {', '.join(wanted) or 'nothing: all exist'}.", format, created=wanted)


@app.command(epilog="Example: ottla topics alter clicks --set retention.ms=3600000 --delete cleanup.policy")
@with_shared_options
def alter(
    topic: Topic,
    set: SetConfigs = None,
    delete: DeleteConfigs = None,
    cluster: Cluster = HERE,
    format: Output = Format.TABLE,
) -> None:
    """Change the configs of a topic."""
    alter_entries(connect(cluster), "topic", topic, set=set, delete=delete)
    print_done(f"Altered {topic}.", format, altered=topic)


@app.command(epilog="Example: ottla topics delete clicks")
@with_shared_options
def delete(
    topics: Topics,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="Do not fail if a topic does not exist.")] = False,
    internal: existing.Internal = False,
    cluster: Cluster = HERE,
    format: Output = Format.TABLE,
) -> None:
    """Delete topics and everything in them."""
    if not internal:
        existing.refuse_internal(topics, "deleted")
    admin = connect(cluster)
    wanted = topics
    if if_exists:
        there = topic_names(admin)
        wanted = [name for name in topics if name in there]
    with plain_errors():
        if wanted:
            wait(admin.delete_topics(wanted), "Deleted")
    print_done(f"Deleted {', '.join(wanted) or 'nothing: none exists'}.", format, deleted=wanted)


app.command(epilog="Example: ottla topics reassign clicks --brokers 1,2,3 --execute --throttle 50000000")(reassign)
app.command(epilog="Example: ottla topics elect-leaders clicks")(elect_leaders)


@app.command(epilog="Example: ottla topics add-partitions clicks --total 12")
@with_shared_options
def add_partitions(
    topic: Topic,
    total: Annotated[
        int,
        typer.Option(
            "--total", "-t", min=1, max=PARTITIONS_MAX, help="Number of partitions that the topic has afterwards."
        ),
    ],
    cluster: Cluster = HERE,
    format: Output = Format.TABLE,
) -> None:
    """Add partitions to a topic. Keys map to other partitions from then on."""
    from confluent_kafka.admin import NewPartitions

    existing.refuse_internal([topic], "given other partitions", meant=None)
    admin = connect(cluster)
    with plain_errors():
        wait(admin.create_partitions([NewPartitions(topic, total)]))
    print_done(f"{topic} has {counted(total, 'partition')}.", format, topic=topic, partitions=total)


def topics_of(admin: AdminClient, names: list[str] | None, internal: bool) -> dict[str, Any]:
    """Descriptions by name; raises CommandError if a named topic does not exist."""
    if names is None:
        names = [name for name in topic_names(admin) if internal or not name.startswith("__")]
    return existing.described_topics(admin, names)


def topic_names(admin: AdminClient) -> set[str]:
    """The topics of the cluster."""
    with plain_errors():
        return set(admin.list_topics(timeout=REQUEST_TIMEOUT_S).topics)


def replication_factor(topic: Any) -> int:
    if not topic.partitions:
        raise CommandError(f"{topic.name} has no partitions.")
    return len(topic.partitions[0].replicas)


def describe_topic(
    topic: Any, configs: dict[str, str], reach: dict[Partition, Extent], eligible: dict[Partition, list[int]]
) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "topic_id": shown_id(topic.topic_id),
        "internal": topic.is_internal,
        "replication_factor": replication_factor(topic),
        "configs": configs,
        "partitions": [
            {
                "partition": each.id,
                "leader": each.leader.id if each.leader else None,
                "replicas": [node.id for node in each.replicas],
                "isr": [node.id for node in each.isr],
                "eligible": eligible.get((topic.name, each.id)),
                **extent_of(reach[topic.name, each.id]),
            }
            for each in sorted(topic.partitions, key=lambda part: part.id)
        ],
    }


def shown_id(topic_id: Any) -> str:
    """A topic id in the form of Kafka and of log files: base64 for URLs; confluent-kafka uses the other alphabet."""
    return str(topic_id).replace("+", "-").replace("/", "_").rstrip("=")


def extent_of(extent: Extent) -> dict[str, int | None]:
    return {**extent._asdict(), "size": sized(extent.size)}


def partition_rows(described: dict[str, Any]) -> list[tuple[Any, ...]]:
    """The partitions of a topic for a table."""
    return [
        (described["topic"], *(join(cell) if isinstance(cell, list) else cell for cell in part.values()))
        for part in described["partitions"]
    ]


def join(numbers: list[int]) -> str:
    return ",".join(map(str, numbers))
