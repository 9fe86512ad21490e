"""Lists transactional ids, and the partitions whose readers an open transaction holds back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from ottla.client.client import LATEST
from ottla.client.errors import BrokerError
from ottla.client.transactions import (
    UNDER_WAY,
    Listed,
    OpenTransaction,
    abort_transaction,
    blockers,
    coordinated,
    list_transactions,
    open_in,
)
from ottla.console.page import Change, Context, Done, InputError, Page, Paged, Part, Preview, View, paged, url
from ottla.console.reading import READ_COMMITTED, leaders_of, metadata_of_all, offsets, topic_of
from ottla.doctor.words import place
from ottla.escaping import visible
from ottla.protocol.messages.describe_transactions import DescribeTransactionsRequest

STATES: Final = ("Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Empty", "Dead")
HANGS_AFTER_MS: Final = 900_000
"""A transaction that no coordinator knows may have begun just now; after this time without a write it hangs."""
AUTOMATIC_PARTITIONS_MAX: Final = 5_000
"""On a larger cluster, held-back partitions are searched when asked for."""


@dataclass(frozen=True, slots=True)
class TransactionRow:
    """A transactional id. `open_ms` is None if it has no ongoing transaction."""

    name: str
    state: str
    producer_id: int
    coordinator: int
    open_ms: int | None
    timeout_ms: int | None
    partitions: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Transactions(View):
    """A page of transactional ids: ongoing transactions first, from the oldest to the newest."""

    search: str
    state: str
    states: tuple[str, ...]
    paged: Paged
    transactions: tuple[TransactionRow, ...]
    under_way: int


def load(context: Context) -> Transactions:
    """The transactional ids of one page. Raises InputError."""
    search, state = context.query.get("q", ""), context.query.get("state", "")
    if state and state not in STATES:
        raise InputError(f"{visible(state)[:40]!r} is no state of a transaction.")
    listed = list_transactions(context.client, [state] if state else [])
    found = sorted(
        (each for each in listed if search.lower() in each.name.lower()),
        key=lambda each: (each.state not in UNDER_WAY, each.name),
    )
    where, shown = paged(found, context.number("page", 1))
    states = states_of(context, shown)
    now = context.now_ms
    rows = [row_of(each, states.get(each.name), now) for each in shown]
    return Transactions(
        title="Transactions",
        command=context.command("transactions", "list"),
        search=search,
        state=state,
        states=STATES,
        paged=where,
        transactions=tuple(sorted(rows, key=lambda row: -1 if row.open_ms is None else row.open_ms, reverse=True)),
        under_way=sum(each.state in UNDER_WAY for each in listed),
    )


def states_of(context: Context, listed: Iterable[Listed]) -> dict[str, Any]:
    """The TransactionState of each id that its coordinator still knows: one request to each coordinator."""
    by_node: dict[int, list[str]] = {}
    for each in listed:
        by_node.setdefault(each.coordinator, []).append(each.name)
    found: dict[str, Any] = {}
    for node_id, ids in by_node.items():
        answer = context.client.broker(node_id).send(DescribeTransactionsRequest(ids))
        found |= {each.transactional_id: each for each in answer.transaction_states if not each.error_code}
    return found


def row_of(listed: Listed, state: Any, now: int) -> TransactionRow:
    """The row of a transactional id."""
    if state is None:
        return TransactionRow(listed.name, listed.state, listed.producer_id, listed.coordinator, None, None, None)
    is_open = state.transaction_state in UNDER_WAY
    return TransactionRow(
        listed.name,
        state.transaction_state,
        state.producer_id,
        listed.coordinator,
        max(0, now - state.transaction_start_time_ms) if is_open else None,
        state.transaction_timeout_ms,
        sum(len(topic.partitions) for topic in state.topics),
    )


# ---- who is held back ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HeldRow:
    """A partition in which readers of committed records wait. `name` is None if no coordinator knows the transaction:
    then it hangs once it has been idle for a while, and nothing will end it."""

    topic: str
    partition: int
    stable: int
    end: int
    waiting: int
    producer_id: int | None
    name: str | None
    open_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBackView(View):
    """The partitions whose readers wait, those with the most records first."""

    held: tuple[HeldRow, ...]
    more: int
    is_waiting: bool


def load_held(context: Context) -> HeldBackView:
    """The partitions whose last stable offset is below their end."""
    command = context.command("transactions", "find-hanging")
    topics = metadata_of_all(context).topics
    leaders = {each: leader for each, leader in leaders_of(topics).items() if leader >= 0}
    if len(leaders) > AUTOMATIC_PARTITIONS_MAX and "run" not in context.query:
        return HeldBackView(title="Readers held back", command=command, held=(), more=0, is_waiting=True)
    stable, ends = offsets(context, leaders, LATEST, isolation=READ_COMMITTED), offsets(context, leaders)
    behind = sorted(
        (each for each in stable if stable[each] < ends.get(each, -1)), key=lambda each: stable[each] - ends[each]
    )
    _, shown = paged(behind, 1)
    now = context.now_ms
    rows = [
        HeldRow(
            each.topic,
            each.partition,
            each.last_stable_offset,
            each.log_end_offset,
            each.log_end_offset - each.last_stable_offset,
            each.producer_id,
            each.name,
            None if each.start_ms is None else max(0, now - each.start_ms),
        )
        for each in blockers(context.client, {place: (stable[place], ends[place]) for place in shown}, leaders)
    ]
    return HeldBackView(
        title="Readers held back",
        command=command,
        held=tuple(rows),
        more=len(behind) - len(shown),
        is_waiting=False,
    )


# ---- abort what hangs ----------------------------------------------------------------------------------------------


def hanging_of(context: Context) -> OpenTransaction:
    """The transaction that the address names, which no coordinator knows. Raises InputError and MissingError."""
    topic, partition = context.need("topic"), context.number("partition", -1, -1)
    if all(each.partition_index != partition for each in topic_of(context, topic).partitions):
        raise InputError(
            f"The producers of {place((visible(topic), partition))} are not known: there is no such partition."
        )
    try:
        opened = open_in(context.client, topic, partition)
    except BrokerError as failure:
        raise InputError(f"The producers of {place((visible(topic), partition))} are not known: {failure}") from None
    first = min(opened, key=lambda each: each.start_offset, default=None)
    if first is None:
        raise InputError(f"No transaction is open in {place((visible(topic), partition))} any more.")
    state = coordinated(context.client, [first]).get(first)
    if state is not None:
        raise InputError(f"The transaction belongs to {visible(state.transactional_id)}: abort it there.")
    idle_ms = context.now_ms - first.last_ms
    if idle_ms < HANGS_AFTER_MS:
        minutes = HANGS_AFTER_MS // 60_000
        raise InputError(
            f"Its last record is {max(0, idle_ms) // 1000} s old. A transaction that no coordinator knows hangs "
            f"after {minutes} minutes without a record."
        )
    return first


def abort_preview(context: Context) -> Preview:
    """The effect of the marker."""
    opened = hanging_of(context)
    where = place((visible(opened.topic), opened.partition))
    return Preview(
        opened.topic,
        (
            f"Aborts the transaction of producer {opened.producer_id} in {where}, open since offset "
            f"{opened.start_offset:,}. Readers of committed records continue after it.",
        ),
        ("Its records in this partition are never delivered to readers of committed records.",),
        facts=(opened.producer_id, opened.producer_epoch, opened.start_offset),
        command=context.command(
            "transactions", "abort", "--topic", opened.topic, "--partition", str(opened.partition),
            "--start-offset", str(opened.start_offset), "--execute",
        ),
    )  # fmt: skip


def abort(context: Context) -> Done:
    """Write the abort marker."""
    opened = hanging_of(context)
    abort_transaction(context.client, opened)
    where = place((visible(opened.topic), opened.partition))
    details = {"partition": where, "producer_id": opened.producer_id, "start_offset": opened.start_offset}
    return Done(f"Aborted the transaction of producer {opened.producer_id} in {where}.", url("/transactions"), details)


PAGE: Final = Page(
    name="transactions",
    path="/transactions",
    load=load,
    label="Transactions",
    key="x",
    refresh_s=10,
    parts=(Part("held", "Readers held back", load_held, refresh_s=30),),
    changes=(Change("abort-hanging", "Abort a hanging transaction", abort_preview, abort),),
)
