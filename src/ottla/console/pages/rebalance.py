"""Proposes moves that balance replicas, bytes and leaders over nodes and racks, and starts them."""

from __future__ import annotations

from typing import Final

from ottla.client.placement import moving
from ottla.client.placement.balance import balanced
from ottla.console.page import Change, Context, Done, InputError, Page, Preview
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
from ottla.doctor.words import count

REBALANCE: Final = "rebalance"


def load(context: Context) -> Plan:
    """The proposal for the present cluster."""
    plan = plan_of(context, is_new="page" not in context.query)
    return Plan(title="Rebalance", command=context.command("cluster", "rebalance"), **facts_of(context, plan))


def plan_of(context: Context, *, is_new: bool = False) -> Planned:
    return planned(context, REBALANCE, lambda layout: balanced(layout.racks, layout.places), is_new=is_new)


def preview(context: Context) -> Preview:
    """The moves that would be started. Raises InputError if there are none, or earlier ones have not ended."""
    throttle = throttle_in(context)
    plan = plan_of(context)
    if plan.layout.moved:
        raise InputError(
            f"Earlier moves of {count(len(plan.layout.moved), 'partition')} have not ended: wait for them, or cancel "
            "them."
        )
    if not plan.moves:
        raise InputError("Replicas, bytes and leaders are balanced already.")
    options = [] if throttle is None else ["--throttle", str(throttle)]
    return Preview(
        "cluster",
        tuple(sentences_of(plan, throttle)),
        columns=COLUMNS,
        rows=rows_of(plan.moves),
        facts=plan.facts,
        command=context.command("cluster", "rebalance", "--execute", *options),
    )


def start(context: Context) -> Done:
    """Start the moves. Leaders of partitions that copy nothing change at once."""
    throttle = throttle_in(context)
    plan = plan_of(context)
    moving.start(context.client, plan.moves, throttle if plan.copies else None)
    moving.wait_until_known(context.client, plan.reorders)
    moving.elect(context.client, [move.place for move in plan.reorders])
    details = {"partitions": len(plan.moves), "bytes": plan.bytes, "throttle": throttle}
    return Done(begun(plan, throttle), "/cluster", details)


PAGE: Final = Page(
    name="rebalance",
    path="/rebalance",
    load=load,
    under="/cluster",
    refresh_s=0,
    changes=(Change("start", "Start the moves", preview, start, throttle_field, is_destructive=False),),
)
