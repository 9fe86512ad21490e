"""`ottla cluster rebalance`: shows or makes the moves that distribute leaders, replicas and bytes over the nodes.

It shows the plan before anything moves. balance.py makes the plan, and moving.py carries it out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from ottla.cli.connection import HERE, Cluster, Output, client_properties, own_clients, plain_failures
from ottla.cli.options import with_shared_options
from ottla.cli.output import Format, Size, counted, print_json, print_rows, say
from ottla.cli.replicas import balance, moving
from ottla.cli.replicas.balance import Move, Replicas

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
    properties = client_properties(cluster)
    with plain_failures(), own_clients(properties)() as client:
        if execute:
            moving.finish_earlier(client)
        racks, places = moving.where(
            client, lambda address: own_clients({**properties, "bootstrap.servers": address})()
        )
        moves = balance.balanced(racks, places)
        told = plan(racks, places, moves)
        if format is Format.TABLE:
            show(told, "" if execute else " --execute does it.")
        if execute:
            moving.carry_out(client, moves, throttle)
            told["done"] = True
    if format is Format.JSON:
        print_json(told)
    elif execute:
        say(f"Done: {counted(len(moves), 'partition')} moved." if moves else "Done: nothing had to be moved.")


def plan(racks: Mapping[int, str | None], places: Sequence[Replicas], moves: Sequence[Move]) -> dict[str, Any]:
    """The effects of the plan, in the form of the JSON output."""
    after = {move.place: move.after for move in moves}
    then = [each._replace(nodes=after.get(each.place, each.nodes)) for each in places]
    now_of, then_of = shares(places), shares(then)
    return {
        "nodes": [
            {
                "node": node,
                "rack": racks[node],
                "leaders": [now_of[0][node], then_of[0][node]],
                "replicas": [now_of[1][node], then_of[1][node]],
                "bytes": [now_of[2][node], then_of[2][node]],
            }
            for node in sorted(racks)
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


def shares(places: Sequence[Replicas]) -> tuple[Counter[int], Counter[int], Counter[int]]:
    """For each node: how many partitions it is the preferred leader of, how many replicas it has, and their bytes."""
    leaders, replicas, size = Counter[int](), Counter[int](), Counter[int]()
    for each in places:
        leaders[each.nodes[0]] += 1
        for node in each.nodes:
            replicas[node] += 1
            size[node] += each.bytes
    return leaders, replicas, size


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
        say("Everything is spread already.")
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


def joined(nodes: Sequence[int]) -> str:
    return ",".join(map(str, nodes))
