"""Shows replicas that left the in-sync replicas in the last hour, and why: a part of the cluster page."""

from __future__ import annotations

from dataclasses import dataclass

from ottla.client.errors import BrokerError
from ottla.console.page import Context, Paged, View, paged
from ottla.console.reading import metadata_of_all
from ottla.doctor.replicas import changes_of_last_hour, event, where_left
from ottla.doctor.words import names


@dataclass(frozen=True, slots=True)
class InSyncRow:
    """A node left the in-sync replicas of some partitions of a leader, or is back."""

    at_ms: int
    node: int
    event: str
    partitions: str
    leader: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InSync(View):
    """A page of the changes of the last hour, newest first. `missing`: a sentence about nodes that report none."""

    paged: Paged
    changes: tuple[InSyncRow, ...]
    missing: str


def load(context: Context) -> InSync:
    """The replicas that left the in-sync replicas in the last hour, and why. Raises BrokerError."""
    nodes = [each.node_id for each in metadata_of_all(context).brokers]
    changes, failed = changes_of_last_hour(context.client, nodes)
    for error in failed.values():
        if isinstance(error, BrokerError):
            raise error
    where, shown = paged(changes, context.number("page", 1))
    missing = ""
    if len(failed) == len(nodes):
        missing = "Only Ottla's nodes remember this: this cluster does not say it."
    elif failed:
        missing = f"Missing: what leaders saw on {names(f'node {each}' for each in sorted(failed))}."
    rows = [InSyncRow(each.at_ms, each.node, event(each), where_left(each), leader) for leader, each in shown]
    return InSync(
        title="In-sync replicas in the last hour",
        command=context.command("cluster", "describe"),
        paged=where,
        changes=tuple(rows),
        missing=missing,
    )
