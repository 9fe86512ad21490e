"""`ottla cluster rebalance`: shows or makes the moves that distribute leaders, replicas and bytes over the nodes.

It shows the plan before anything moves. The package `ottla.client.placement` makes the plan and starts the moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.connection import HERE, Cluster, Output, client_properties, own_clients, plain_failures
from ottla.cli.options import with_shared_options
from ottla.cli.output import Format, Size, counted, print_json, print_rows, say
from ottla.cli.replicas import progress

if TYPE_CHECKING:
    from ottla.client.placement.balance import Move, Replicas

Throttle = Annotated[
    int | None,
    typer.Option(
        "--throttle",
        min=1,
        metavar="BYTES",
        help="Bytes per second that each node copies at most (default: unlimited).",
    ),
]
ROWS_MAX = 20
NODE_COLUMNS = ("NODE", "RACK", "LEADERS", "THEN", "REPLICAS", "THEN", "BYTES", "THEN")
MOVE_COLUMNS = ("TOPIC", "PARTITION", "REPLICAS", "THEN", "BYTES-COPIED")


@with_shared_options
def rebalance(
    execute: Annotated[bool, typer.Option("--execute", help="Make the moves and wait until they end.")] = False,
    throttle: Throttle = None,
    cluster: Cluster = HERE,
    format: Output = Format.TABLE,
) -> None:
    """Show moves that balance replicas, their bytes and leaders over nodes and racks; with --execute perform them.

    The command first waits for moves in progress. It does not move the replicas of balanced topics, and a change of the
    preferred leader copies nothing.
    """
    from ottla.client.placement.balance import balanced
    from ottla.client.placement.moving import layout_of

    with plain_failures(), own_clients(client_properties(cluster))() as client:
        if execute:
            progress.finish_earlier(client)
        layout = layout_of(client)
        moves = balanced(layout.racks, layout.places)
        told = plan(layout.racks, layout.places, moves)
        if format is Format.TABLE:
            show(told, "" if execute else " --execute does it.")
        if execute:
            progress.carry_out(client, moves, throttle)
            told["done"] = True
    if format is Format.JSON:
        print_json(told)
    elif execute:
        say(f"Done: {counted(len(moves), 'partition')} moved." if moves else "Done: nothing had to be moved.")


def plan(racks: Mapping[int, str | None], places: Sequence[Replicas], moves: Sequence[Move]) -> dict[str, Any]:
    """The effects of the plan, in the form of the JSON output."""
    from ottla.client.placement.plan import shares_of

    return {
        "nodes": [
            {
                "node": each.node,
                "rack": each.rack,
                "leaders": list(each.leaders),
                "replicas": list(each.replicas),
                "bytes": list(each.bytes),
            }
            for each in shares_of(racks, places, moves)
        ],
        "moves": [
            {
                "topic": move.place[0],
                "partition": move.place[1],
                "before": list(move.before),
                "after": list(move.after),
                "bytes": move.bytes_moved,
            }
            for move in moves
        ],
        "bytes": sum(move.bytes_moved for move in moves),
        "done": False,
    }


def show(told: dict[str, Any], way_on: str) -> None:
    """Print the plan for people: each node before and after, the moves, and their total; `way_on` is the last line."""
    rows = [
        (node["node"], node["rack"], *node["leaders"], *node["replicas"], *map(Size, node["bytes"]))
        for node in told["nodes"]
    ]
    print_rows(NODE_COLUMNS, rows, Format.TABLE)
    moves = told["moves"]
    say("")
    if not moves:
        say(balanced_already(told["nodes"]))
        return
    shown = [
        (each["topic"], each["partition"], joined(each["before"]), joined(each["after"]), Size(each["bytes"]))
        for each in moves[:ROWS_MAX]
    ]
    print_rows(MOVE_COLUMNS, shown, Format.TABLE)
    if len(moves) > ROWS_MAX:
        say(f"and {len(moves) - ROWS_MAX} more: --format json shows all.")
    copied = sum(each["bytes"] > 0 or set(each["before"]) != set(each["after"]) for each in moves)
    say("")
    say(
        f"Moves replicas of {counted(copied, 'partition')} to other nodes, {Size(told['bytes'])} in all. "
        f"Changes only the preferred leader of {counted(len(moves) - copied, 'partition')}.{way_on}"
    )


def balanced_already(nodes: Sequence[Mapping[str, Any]]) -> str:
    """A sentence about nodes of which none has too much."""
    replicas, leaders, bytes_ = ([each[what][0] for each in nodes] for what in ("replicas", "leaders", "bytes"))
    return (
        f"Nothing to move: each node has {between(replicas, 'replica')} with {between(map(Size, bytes_))}, and is the "
        f"preferred leader of {between(leaders, 'partition')}."
    )


def between(values: Iterable[int], noun: str = "") -> str:
    """The smallest and the largest value: "1 replica", "4 to 5 replicas"."""
    found = sorted(values)
    least, most = found[0], found[-1]
    if not noun:
        return str(least) if str(least) == str(most) else f"{least} to {most}"
    return counted(most, noun) if least == most else f"{least:,} to {counted(most, noun)}"


def joined(nodes: Sequence[int]) -> str:
    return ",".join(map(str, nodes))
