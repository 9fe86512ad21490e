"""`ottla topics reassign`: shows or makes the moves that place topics on other nodes, or change their replication
factor; lists moves in progress, and cancels them.

It reads and writes the file of Kafka's kafka-reassign-partitions. The package `ottla.client.placement` makes the plan
and starts the moves.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
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
from ottla.cli.existing import REPLICAS_MAX, require_topics
from ottla.cli.options import with_shared_options
from ottla.cli.output import CommandError, Format, Size, UsageError, counted, print_done, print_json, print_rows
from ottla.cli.plans import Execute, tell_unchanged
from ottla.cli.replicas.progress import carry_out

if TYPE_CHECKING:
    from ottla.client import Client
    from ottla.client.placement.balance import Move, Replicas, TopicPartition

VERSION = 1
"""The version of the file."""
ID_MAX = 2**31 - 1
PLAN_COLUMNS = ("TOPIC", "PARTITION", "REPLICAS", "THEN", "BYTES-COPIED")
MOVING_COLUMNS = ("TOPIC", "PARTITION", "REPLICAS", "ADDING", "REMOVING")

Topics = Annotated[
    list[str] | None,
    typer.Argument(metavar="[TOPIC...]", callback=named, autocompletion=complete_topics, help="Names of topics."),
]
Nodes = Annotated[
    str | None,
    typer.Option("--brokers", metavar="ID,ID,...", help="Nodes that hold the replicas afterwards (default: any node)."),
]
Factor = Annotated[
    int | None,
    typer.Option(
        "--replication-factor",
        "-r",
        min=1,
        max=REPLICAS_MAX,
        help="Replicas of each partition afterwards (default: as now).",
    ),
]
Plan = Annotated[
    Path | None,
    typer.Option(
        "--plan", metavar="FILE", help="File of moves, as --format json or Kafka's tool prints them (default: none)."
    ),
]
Throttle = Annotated[
    int | None,
    typer.Option(
        "--throttle",
        min=1,
        metavar="BYTES",
        help="Bytes per second that each node copies at most (default: unlimited).",
    ),
]
Cancel = Annotated[bool, typer.Option("--cancel", help="Cancel the moves of these topics, or of all.")]
List = Annotated[bool, typer.Option("--list", help="Show the moves of these topics, or of all.")]
Verify = Annotated[
    bool,
    typer.Option("--verify", help="Show the moves; if there are none, remove the throttles that earlier moves left."),
]


@with_shared_options
def reassign(
    topics: Topics = None,
    brokers: Nodes = None,
    replication_factor: Factor = None,
    plan: Plan = None,
    execute: Execute = False,
    throttle: Throttle = None,
    cancel: Cancel = False,
    list: List = False,
    verify: Verify = False,
    cluster: Cluster = HERE,
    format: Output = Format.TABLE,
) -> None:
    """Show moves that place topics on these nodes, or change their number of replicas; with --execute make them.

    The moves copy as little as possible. Kafka's kafka-reassign-partitions reads the output of --format json, and
    --plan reads the output of Kafka's tool.
    """
    asked = [plan is not None, brokers is not None or replication_factor is not None, cancel, list, verify]
    if sum(asked) != 1:
        raise UsageError("Choose one: --brokers and --replication-factor, --plan, --list, --verify or --cancel.")
    if plan is not None and topics:
        raise UsageError("Name no topics: those that the file of --plan names are moved.")
    if (brokers is not None or replication_factor is not None) and not topics:
        raise UsageError("Name the topics that shall be moved.")
    nodes = None if brokers is None else node_ids(brokers)
    targets = None if plan is None else read_plan(plan)
    with plain_failures(), own_clients(client_properties(cluster))() as client:
        if list or verify or cancel:
            look_after(client, topics or [], format, cancel=cancel, verify=verify)
            return
        moves, asked = planned(client, topics or [], nodes, replication_factor, targets)
        show(moves, format)
        if execute:
            done = carry_out(client, moves, throttle, asked)
            if format is Format.TABLE:
                print_done(f"Done: {counted(done, 'partition')} moved." if done else "", format)
        elif moves:
            tell_unchanged(execute, format)


def look_after(client: Client, topics: Sequence[str], format: Format, *, cancel: bool, verify: bool) -> None:
    """Show the moves in progress of these topics, or of all, or cancel them. Raises CommandError, ClientError."""
    from ottla.client.placement import moving

    if topics:
        require_topics(topics, (part.topic for part in placed_of(client)))
    found = {place: each for place, each in moving.under_way(client).items() if not topics or place[0] in topics}
    if cancel:
        moving.cancel(client, found)
        told = [f"{name}-{index}" for name, index in sorted(found)]
        print_done(f"Cancelled {', '.join(told) or 'nothing: nothing is being moved'}.", format, cancelled=told)
    elif verify and not found:
        told = moving.lift(client, topics)
        where = f"; throttles are taken away from {', '.join(told)}" if told else ""
        print_done(f"Nothing is being moved{where}.", format, lifted=told)
    else:
        rows = [(*place, *map(joined, each)) for place, each in sorted(found.items())]
        print_rows(MOVING_COLUMNS, rows, format)


def planned(
    client: Client,
    topics: Sequence[str],
    nodes: Sequence[int] | None,
    factor: int | None,
    targets: dict[TopicPartition, tuple[int, ...]] | None,
) -> tuple[list[Move], list[TopicPartition]]:
    """The requested moves, and their partitions. Raises CommandError, ClientError."""
    from ottla.client.placement.balance import UnsatisfiablePlanError
    from ottla.client.placement.moving import layout_of
    from ottla.client.placement.resizing import placed_anew

    layout = layout_of(client)
    places = {each.place: each for each in layout.places}
    if targets is not None:
        return moves_of(targets, places), list(targets)
    require_topics(topics, (name for name, _ in places))
    chosen = [each for place, each in sorted(places.items()) if place[0] in topics]
    try:
        return placed_anew(layout.racks, chosen, nodes, factor), [each.place for each in chosen]
    except UnsatisfiablePlanError as impossible:
        raise CommandError(str(impossible)) from None


def node_ids(text: str) -> list[int]:
    """The node ids of `1,2,3`. Raises UsageError."""
    try:
        ids = [int(each) for each in text.split(",")]
    except ValueError:
        raise UsageError(f"{text!r} is no list of brokers: write their ids, as in 1,2,3.") from None
    if len(set(ids)) < len(ids):
        raise UsageError(f"{text!r} names a broker twice.")
    return ids


# ---- the file ------------------------------------------------------------------------------------------------------


def read_plan(path: Path) -> dict[TopicPartition, tuple[int, ...]]:
    """The replicas in a file, by partition. Raises CommandError."""
    try:
        read = json.loads(path.read_text())
        targets = [
            ((text(each["topic"]), number(each["partition"])), tuple(map(number, each["replicas"])))
            for each in read["partitions"]
        ]
    except OSError as error:
        raise CommandError(f"{path} can't be read: {error.strerror or error}.") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise CommandError(
            f'{path} is no plan: {{"version": 1, "partitions": [{{"topic": "orders", "partition": 0, "replicas": '
            "[1, 2]}]} is one."
        ) from None
    twice = [place for place, count in Counter(place for place, _ in targets).items() if count > 1]
    if twice:
        raise CommandError(f"{path} names {twice[0][0]}-{twice[0][1]} more than once.")
    return dict(targets)


def text(value: object) -> str:
    """The name of a topic. Raises ValueError."""
    if type(value) is not str:
        raise ValueError(value)
    return value


def number(value: object) -> int:
    """The id of a partition or a node, within the protocol's range. Raises ValueError."""
    if type(value) is not int or not 0 <= value <= ID_MAX:
        raise ValueError(value)
    return value


def moves_of(targets: dict[TopicPartition, tuple[int, ...]], places: dict[TopicPartition, Replicas]) -> list[Move]:
    """The moves that give these partitions their target replicas. Raises CommandError."""
    from ottla.client.placement.balance import Move

    missing = sorted(targets.keys() - places.keys())
    if missing:
        raise CommandError(f"There is no partition {missing[0][0]}-{missing[0][1]}.")
    known = [(places[place], target) for place, target in sorted(targets.items())]
    return [Move(each.place, each.nodes, target, each.bytes) for each, target in known if each.nodes != target]


# ---- output --------------------------------------------------------------------------------------------------------


def show(moves: Sequence[Move], format: Format) -> None:
    """Print the plan: a table for people, Kafka's file for programs."""
    if format is Format.JSON:
        partitions = [{"topic": move.place[0], "partition": move.place[1], "replicas": [*move.after]} for move in moves]
        print_json({"version": VERSION, "partitions": partitions})
        return
    rows = [(*move.place, joined(move.before), joined(move.after), Size(move.bytes_moved)) for move in moves]
    print_rows(PLAN_COLUMNS, rows, format, none="No replica has to move.")


def joined(nodes: Sequence[int]) -> str:
    return ",".join(map(str, nodes))
