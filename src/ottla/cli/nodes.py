"""`ottla nodes`: list, drain and remove nodes of a cluster.

Sends the requests that must precede a node's removal. The package `ottla.client.placement` chooses the targets of
replicas, and starts their moves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.connection import HERE, Cluster, Output, client_properties, own_clients, plain_failures
from ottla.cli.options import with_shared_options
from ottla.cli.output import CommandError, Format, print_done, print_rows
from ottla.cli.replicas.progress import carry_out

if TYPE_CHECKING:
    from ottla.client import Client
    from ottla.client.connection import Connection
    from ottla.client.placement.balance import TopicPartition

app = typer.Typer(help="List the nodes of a cluster, drain them and remove them.", no_args_is_help=True)

NAMES_MAX = 5
LED_S = 10.0
"""How long other nodes may take to become leaders."""

Node = Annotated[int, typer.Argument(metavar="NODE", min=0, help="Number of the node.")]
Throttle = Annotated[
    int | None,
    typer.Option(
        "--throttle",
        min=1,
        metavar="BYTES",
        help="Bytes per second that each node copies at most (default: unlimited).",
    ),
]


COLUMNS = ("NODE", "ADDRESS", "RACK", "STATE", "CONTROLLER")


@app.command("list", epilog="Example: ottla nodes list")
@with_shared_options
def list_(cluster: Cluster = HERE, format: Output = Format.TABLE) -> None:
    """List the nodes of the cluster, including those that are down. `ottla cluster describe` shows more details."""
    from ottla.protocol.messages.describe_cluster import DescribeClusterRequest

    with plain_failures(), own_clients(client_properties(cluster))() as client:
        seen = client.send(DescribeClusterRequest(include_fenced_brokers=True))
    rows = [
        (
            each.broker_id,
            f"{each.host}:{each.port}",
            each.rack,
            "down" if each.is_fenced else "up",
            each.broker_id == seen.controller_id,
        )
        for each in sorted(seen.brokers, key=lambda each: each.broker_id)
    ]
    print_rows(COLUMNS, rows, format)


@app.command(epilog="Example: ottla nodes drain 3 --replicas --throttle 50000000")
@with_shared_options
def drain(
    node: Node,
    replicas: Annotated[bool, typer.Option("--replicas", help="Move its replicas to other nodes too.")] = False,
    throttle: Throttle = None,
    cluster: Cluster = HERE,
    format: Output = Format.TABLE,
) -> None:
    """Move the leaderships of a node, and with --replicas its replicas, to other nodes; return when this is done.

    Without --replicas the node stays a follower and becomes the last choice as leader; `ottla cluster rebalance`
    restores its share.
    """
    from ottla.client.placement import balance
    from ottla.client.placement.moving import layout_of

    with plain_failures(), own_clients(client_properties(cluster))() as client:
        require_known(client, node)
        layout = layout_of(client)
        try:
            moves = (
                balance.emptied(layout.racks, layout.places, [node])
                if replicas
                else balance.led_by_others(layout.places, [node], layout.may_lead(node))
            )
        except balance.UnsatisfiablePlanError as why:
            raise CommandError(f"Node {node} can't be emptied: {why}") from None
        leaving = [place for place, moved in layout.moved.items() if node in moved.removing]
        carry_out(client, moves, throttle, leaving if replicas else ())
        await_led_by_others(client, node)
    left = "nothing is on it any more" if replicas else "it leads nothing any more"
    copied = sum(move.bytes_moved for move in moves)
    print_done(f"Drained node {node}: {left}.", format, drained=node, moved=len(moves), bytes=copied)


@app.command(epilog="Example: ottla nodes remove 3")
@with_shared_options
def remove(node: Node, cluster: Cluster = HERE, format: Output = Format.TABLE) -> None:
    """Remove a stopped node without replicas from the cluster.

    `ottla cluster start` leaves it out from then on. Starting that node adds it again.
    """
    from ottla.client import BrokerError
    from ottla.client.errors import check
    from ottla.client.placement.moving import wait_for_all
    from ottla.protocol.messages.unregister_broker import UnregisterBrokerRequest

    with plain_failures(), own_clients(client_properties(cluster))() as client:
        require_known(client, node)
        answer = client.send(UnregisterBrokerRequest(broker_id=node))
        try:
            check(answer.error_code, f"node {node}", answer.error_message)
        except BrokerError:
            advice = f" `ottla nodes drain {node} --replicas` does that." if "replicas" in answer.error_message else ""
            raise CommandError(f"{answer.error_message}{advice}") from None
        wait_for_all(client, lambda asked: node not in known_to(asked))
    print_done(f"Removed node {node}.", format, removed=node)


def require_known(client: Client, node: int) -> None:
    """Raise CommandError if the cluster has no such node."""
    known = sorted(known_to(client))
    if node not in known:
        raise CommandError(f"The cluster has no node {node}: it has {', '.join(map(str, known))}.")


def known_to(asked: Client | Connection) -> set[int]:
    """The nodes of the cluster, including those that are down. Raises ClientError."""
    from ottla.protocol.messages.describe_cluster import DescribeClusterRequest

    return {each.broker_id for each in asked.send(DescribeClusterRequest(include_fenced_brokers=True)).brokers}


def await_led_by_others(client: Client, node: int) -> None:
    """Elect the preferred replicas of the partitions that this node leads; return when it leads none. Raises
    CommandError naming the partitions that it still leads."""
    from ottla.client.placement.moving import hand_over

    led = hand_over(client, node, LED_S)
    if led:
        may_go = [place for place, in_sync in led.items() if set(in_sync) - {node}]
        raise CommandError(_still_leads(node, may_go or list(led), bool(may_go)))


def _still_leads(node: int, led: list[TopicPartition], may_go: bool) -> str:
    names = ", ".join(f"{topic}-{partition}" for topic, partition in led[:NAMES_MAX])
    more = f" and {len(led) - NAMES_MAX} more" if len(led) > NAMES_MAX else ""
    why = (
        f"no other replica has taken over within {LED_S:.0f} s. Run the command again."
        if may_go
        else "no other replica is in sync. Wait until `ottla cluster describe` shows others in sync, or move the "
        "replicas elsewhere with --replicas."
    )
    return f"Node {node} still leads {names}{more}: {why}"
