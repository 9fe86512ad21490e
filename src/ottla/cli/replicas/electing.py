"""`ottla topics elect-leaders`: makes preferred replicas leaders again, or any replica if none in sync is left.

It sends the request of Kafka's kafka-leader-election (confluent-kafka 2.x rejects its own arguments for it). The
cluster decides which replicas may lead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.cluster.facts import placed_of
from ottla.cli.connection import (
    HERE,
    Cluster,
    Output,
    client_properties,
    complete_topics,
    named,
    own_clients,
    plain_failures,
)
from ottla.cli.options import with_shared_options
from ottla.cli.output import CommandError, Format, UsageError, counted, print_done, print_rows, ranges, say
from ottla.cli.plans import Yes, confirm
from ottla.cli.replicas.losses import Loss, losses
from ottla.escaping import visible

if TYPE_CHECKING:
    from ottla.client import Client, TopicPartition

PREFERRED, UNCLEAN = 0, 1


@with_shared_options
def elect_leaders(
    topics: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TOPIC...]", callback=named, autocompletion=complete_topics, help="Names of topics (default: all)."
        ),
    ] = None,
    unclean: Annotated[
        bool,
        typer.Option(
            "--unclean", help="Elect any replica if none in sync is available; records that it lacks are lost."
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what --unclean would lose, and change nothing.")
    ] = False,
    yes: Yes = False,
    cluster: Cluster = HERE,
    format: Output = Format.TABLE,
) -> None:
    """Make the first replica of each partition its leader again; without a topic, in all topics.

    With --unclean, any available replica leads the partitions of the named topics that have no leader. The command
    shows which replica would lead each partition and which records would be lost, and asks for confirmation unless
    --yes is given.
    """
    if unclean and not topics:
        raise UsageError("Name the topics that may lose records: --unclean elects for no others.")
    if dry_run and not unclean:
        raise UsageError("--dry-run shows what --unclean would lose: add --unclean.")
    with plain_failures(), own_clients(client_properties(cluster))() as client:
        places = [(part.topic, part.partition) for part in placed_of(client) if not topics or part.topic in topics]
        missing = sorted(set(topics or ()) - {name for name, _ in places})
        if missing:
            raise CommandError(f"There is no topic {missing[0]}. `ottla topics list` shows the existing ones.")
        expected = losses(client, places) if unclean else []
        if expected and format is Format.TABLE:
            for loss in expected:
                say(f"{loss.sentence}.", err=not dry_run)
        if dry_run:
            _print_plan(expected, format)
            return
        if expected:
            confirm(_question(expected), yes)
        elected, failures = elect(client, places, UNCLEAN if unclean else PREFERRED)
    names = [f"{name}-{index}" for name, index in elected]
    if failures:
        done = f"Elected leaders of {counted(len(elected), 'partition')} all the same." if elected else ""
        raise CommandError("\n".join(filter(None, (*map(visible, failures), done))))
    if format is Format.TABLE and elected:
        by_topic: dict[str, list[int]] = {}
        for name, index in elected:
            by_topic.setdefault(name, []).append(index)
        print_rows(("TOPIC", "PARTITIONS"), [(name, ranges(some)) for name, some in sorted(by_topic.items())], format)
    told = counted(len(elected), "partition") if elected else "no partition: each has its preferred leader"
    print_done(f"Elected leaders of {told}.", format, elected=names)


def _print_plan(expected: list[Loss], format: Format) -> None:
    rows = [(f"{loss.topic}-{loss.partition}", loss.leader, loss.end_offset, loss.records) for loss in expected]
    if format is Format.JSON:
        print_rows(("PARTITION", "LEADER", "END-OFFSET", "LOST"), rows, format)
    else:
        say("Nothing was changed." if expected else "No partition needs an unclean election: nothing would be lost.")


def _question(expected: list[Loss]) -> str:
    lost = sum(loss.records for loss in expected)
    known = f" and lose up to {counted(lost, 'acknowledged record')}" if lost else ""
    return f"Elect leaders of {counted(len(expected), 'partition')}{known}? This cannot be undone."


def elect(client: Client, places: list[TopicPartition], kind: int) -> tuple[list[TopicPartition], list[str]]:
    """The partitions that have a new leader, and a sentence for each partition that could not get one."""
    from ottla.client.errors import check
    from ottla.protocol.errors import ErrorCode
    from ottla.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions

    asked: dict[str, list[int]] = {}
    for name, index in places:
        asked.setdefault(name, []).append(index)
    topics = [TopicPartitions(name, partitions) for name, partitions in asked.items()]
    answer = client.send(ElectLeadersRequest(kind, topics))
    check(answer.error_code, "the elections")
    elected: list[TopicPartition] = []
    failures: list[str] = []
    for topic in answer.replica_election_results:
        for part in topic.partition_result:
            code, place = ErrorCode(part.error_code), f"{topic.topic}-{part.partition_id}"
            if code is ErrorCode.NONE:
                elected.append((topic.topic, part.partition_id))
            elif code is not ErrorCode.ELECTION_NOT_NEEDED:
                failures.append(f"{place}: {(part.error_message or code.message).rstrip('.')} ({code.name}).")
    return elected, failures
