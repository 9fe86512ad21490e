"""Shows what leaves a node that is drained, and what cannot; drains it, and removes a node that is down and empty."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ottla.client.errors import check
from ottla.client.placement import moving
from ottla.client.placement.balance import Move, UnsatisfiablePlanError, emptied, led_by_others
from ottla.client.placement.moving import Layout
from ottla.console.page import Change, Context, Done, Field, InputError, MissingError, Page, Preview
from ottla.console.planning import (
    COLUMNS,
    Plan,
    Planned,
    begun,
    facts_of,
    planned,
    rows_of,
    sentences_of,
    throttle_field,
    throttle_in,
)
from ottla.doctor.words import count, places
from ottla.protocol.messages.describe_cluster import DescribeClusterRequest
from ottla.protocol.messages.unregister_broker import UnregisterBrokerRequest

HAND_OVER_S: Final = 5.0
"""How long other nodes may take to become leaders."""
CANNOT_MAX: Final = 50


@dataclass(frozen=True, slots=True)
class CannotRow:
    """A partition that cannot leave the node, and why."""

    topic: str
    partition: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain(Plan):
    """The plan for one node. `replicas`: whether its replicas leave it too, or only its leaders. `leads`, `hosts` and
    `leaving` count partitions: those that leave it already are not among those that it hosts. `cannot` are the first of
    `cannot_in_all` that cannot leave; if replicas cannot, nothing is moved."""

    node: int
    rack: str | None
    is_down: bool
    replicas: bool
    leads: int
    hosts: int
    leaving: int
    cannot: tuple[CannotRow, ...]
    cannot_in_all: int


def node_named(context: Context) -> tuple[int, Any]:
    """The node that the address names, as the cluster describes it. Raises MissingError."""
    node = context.number("node", -1, least=-1)
    brokers = context.client.send(DescribeClusterRequest(include_fenced_brokers=True)).brokers
    found = next((each for each in brokers if each.broker_id == node), None)
    if found is None:
        known = ", ".join(str(each.broker_id) for each in sorted(brokers, key=lambda each: each.broker_id))
        raise MissingError(f"The cluster has no node {node}: it has {known}.")
    return node, found


def load(context: Context) -> Drain:
    """Show the replicas and leaders that would leave the node in the address."""
    node, broker = node_named(context)
    replicas = wants_replicas(context)
    plan, cannot = plan_of(context, node, replicas=replicas, is_new="page" not in context.query)
    options = ("--replicas",) if replicas else ()
    return Drain(
        title=f"Drain node {node}",
        command=context.command("nodes", "drain", str(node), *options),
        **facts_of(context, plan),
        node=node,
        rack=broker.rack,
        is_down=broker.is_fenced or node not in plan.layout.racks,
        replicas=replicas,
        leads=sum(leader == node for leader in plan.layout.leaders.values()),
        hosts=sum(node in each.nodes for each in plan.layout.places),
        leaving=sum(node in each.removing for each in plan.layout.moved.values()),
        cannot=tuple(CannotRow(*place, why) for place, why in list(cannot.items())[:CANNOT_MAX]),
        cannot_in_all=len(cannot),
    )


def wants_replicas(context: Context) -> bool:
    return context.query.get("replicas") == "yes"


def plan_of(
    context: Context, node: int, *, replicas: bool, is_new: bool = False
) -> tuple[Planned, Mapping[tuple[str, int], str]]:
    """The moves that drain a node, and the partitions that cannot leave it. If replicas cannot, there are no moves."""

    def make(layout: Layout) -> list[Move]:
        if not replicas:
            return led_by_others(layout.places, [node], layout.may_lead(node))
        try:
            return emptied(layout.racks, layout.places, [node])
        except UnsatisfiablePlanError:
            return []

    plan = planned(context, f"drain {node} {replicas}", make, is_new=is_new)
    return plan, cannot_leave(plan.layout, node, replicas=replicas)


def cannot_leave(layout: Layout, node: int, *, replicas: bool) -> dict[tuple[str, int], str]:
    """The partitions whose replica, or whose leader, cannot leave this node, each with the reason."""
    others = layout.racks.keys() - {node}
    if replicas:
        return {
            each.place: f"has {count(len(each.nodes), 'replica')}, and {count(len(others), 'node')} would be left"
            for each in layout.places
            if node in each.nodes and not others - set(each.nodes)
        }
    found: dict[tuple[str, int], str] = {}
    for each in layout.places:
        if layout.leaders[each.place] == node and not set(layout.in_sync[each.place]) - {node}:
            alone = set(each.nodes) == {node}
            found[each.place] = "has no other replica" if alone else "no other replica is in sync"
    return found


# ---- drain ---------------------------------------------------------------------------------------------------------


def drain_fields(context: Context) -> tuple[Field, ...]:
    return throttle_field(context) if wants_replicas(context) else ()


def drain_preview(context: Context) -> Preview:
    """Show the replicas and leaders that would leave the node. Raises InputError if none can."""
    node, _ = node_named(context)
    replicas, throttle = wants_replicas(context), throttle_in(context)
    plan, cannot = plan_of(context, node, replicas=replicas)
    leads = plan.layout.may_lead(node)
    if replicas and cannot:
        raise InputError(
            f"Node {node} cannot be emptied: {places(cannot)} would have more replicas than there are nodes left."
        )
    leaving = [place for place in leads if place not in cannot]
    if not plan.moves and (replicas or not leaving):
        rest = f" {places(cannot)} cannot leave it." if cannot else ""
        raise InputError(f"Nothing on node {node} has to be moved.{rest}")
    sentences = sentences_of(plan, throttle)
    if not replicas:
        sentences = [
            f"Makes other nodes the leaders of {count(len(leaving), 'partition')} that node {node} leads now. It keeps "
            "its replicas, and becomes the last choice as leader.",
            *sentences,
        ]
    warning = f"Node {node} continues to lead {places(cannot)}. They are offline while it is stopped."
    options = [*(["--replicas"] if replicas else []), *([] if throttle is None else ["--throttle", str(throttle)])]
    return Preview(
        f"node {node}",
        tuple(sentences),
        (warning,) if cannot else (),
        COLUMNS,
        rows_of(plan.moves),
        facts=(plan.facts, sorted(leaving), sorted(cannot)),
        command=context.command("nodes", "drain", str(node), *options),
    )


def drain(context: Context) -> Done:
    """Start the moves; without replicas, wait a few seconds until other nodes lead."""
    node, _ = node_named(context)
    replicas, throttle = wants_replicas(context), throttle_in(context)
    plan, _ = plan_of(context, node, replicas=replicas)
    moving.start(context.client, plan.moves, throttle)
    details = {"node": node, "partitions": len(plan.moves), "bytes": plan.bytes, "throttle": throttle}
    if replicas:
        sentence = begun(plan, throttle)
    else:
        moving.wait_until_known(context.client, plan.moves)
        left = moving.hand_over(context.client, node, HAND_OVER_S)
        sentence = f"Node {node} still leads {places(left)}." if left else f"Node {node} leads nothing any more."
        details["still_leads"] = len(left)
    return Done(sentence, "/cluster", details)


# ---- removal -------------------------------------------------------------------------------------------------------


def remove_preview(context: Context) -> Preview:
    """The removal of a node. Raises InputError if it is up or has replicas."""
    node, broker = node_named(context)
    if not broker.is_fenced:
        raise InputError(f"Node {node} is up: stop it before you remove it.")
    parts = moving.partitions_of(context.client)
    hosted = [place for place, part in parts.items() if node in part.replica_nodes]
    if hosted:
        raise InputError(f"Node {node} has replicas of {places(hosted)}: drain it with its replicas first.")
    return Preview(
        f"node {node}",
        (f"Removes node {node} at {broker.host}:{broker.port} from the cluster. Starting it adds it again.",),
        facts=(broker.host, broker.port),
        command=context.command("nodes", "remove", str(node)),
    )


def remove(context: Context) -> Done:
    """Remove the node."""
    node, _ = node_named(context)
    answer = context.client.send(UnregisterBrokerRequest(broker_id=node))
    check(answer.error_code, f"node {node}", answer.error_message)
    return Done(f"Removed node {node}.", "/cluster", {"node": node})


PAGE: Final = Page(
    name="drain",
    path="/drain",
    load=load,
    under="/cluster",
    refresh_s=0,
    changes=(
        Change("start", "Drain the node", drain_preview, drain, drain_fields, is_destructive=False),
        Change("remove", "Remove the node", remove_preview, remove),
    ),
)
