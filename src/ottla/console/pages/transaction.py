"""Shows one transactional id: its producer, its partitions, and the groups whose readers wait for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from ottla.client.client import LATEST, TopicPartition
from ottla.client.transactions import UNDER_WAY, fence_producer, list_transactions
from ottla.console.group_reading import coordinated, described
from ottla.console.page import Change, Context, Done, InputError, MissingError, Page, Part, Preview, View, url
from ottla.console.pages.transactions import states_of
from ottla.console.reading import READ_COMMITTED, leaders_at, offsets
from ottla.doctor.words import count, duration
from ottla.escaping import visible

GROUPS_MAX: Final = 1_000
"""Of more groups, the readers are not searched: their positions would all have to be read."""


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """A partition of the transaction. `waiting` counts the records that readers of committed records do not get yet."""

    topic: str
    partition: int
    stable: int | None
    end: int | None
    waiting: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionView(View):
    """The transactional id. `left_ms`: after this time its coordinator aborts the transaction by itself."""

    name: str
    state: str
    is_open: bool
    producer_id: int
    producer_epoch: int
    started_ms: int | None
    open_ms: int | None
    left_ms: int | None
    timeout_ms: int
    partitions: tuple[PartitionRow, ...]
    unseen: tuple[str, ...]


def state_of(context: Context) -> Any:
    """The TransactionState of the id that the address names. Raises MissingError.

    It is searched in the lists of all coordinators: asking for the coordinator of an id that does not exist would
    create the topic in which coordinators keep their state.
    """
    name = context.need("name")
    listed = [each for each in list_transactions(context.client) if each.name == name]
    state = states_of(context, listed).get(name)
    if state is None:
        raise MissingError(f"There is no transactional id {visible(name)}.")
    return state


def load(context: Context) -> TransactionView:
    """The transactional id that the address names."""
    state = state_of(context)
    is_open = state.transaction_state in UNDER_WAY
    open_ms = max(0, context.now_ms - state.transaction_start_time_ms) if is_open else None
    unseen: list[str] = []
    return TransactionView(
        title=f"Transactional id {visible(state.transactional_id)}",
        command=context.command("transactions", "describe", state.transactional_id),
        name=state.transactional_id,
        state=state.transaction_state,
        is_open=is_open,
        producer_id=state.producer_id,
        producer_epoch=state.producer_epoch,
        started_ms=state.transaction_start_time_ms if is_open else None,
        open_ms=open_ms,
        left_ms=None if open_ms is None else max(0, state.transaction_timeout_ms - open_ms),
        timeout_ms=state.transaction_timeout_ms,
        partitions=tuple(partitions_of(context, state, unseen)),
        unseen=tuple(unseen),
    )


def places_of(state: Any) -> list[TopicPartition]:
    """The partitions that the transaction writes to."""
    return sorted((topic.topic, index) for topic in state.topics for index in topic.partitions)


def partitions_of(context: Context, state: Any, unseen: list[str]) -> list[PartitionRow]:
    """The rows of the transaction's partitions."""
    places = places_of(state)
    if not places:
        return []
    leaders = leaders_at(context, places)
    stable = offsets(context, leaders, LATEST, isolation=READ_COMMITTED, unseen=unseen)
    ends = offsets(context, leaders, unseen=unseen)
    return [
        PartitionRow(
            *each,
            stable.get(each),
            ends.get(each),
            max(0, ends[each] - stable[each]) if each in ends and each in stable else None,
        )
        for each in places
    ]


# ---- who waits -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReaderRow:
    """A group that reads partitions of the transaction."""

    group: str
    type: str
    members: int
    partitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Readers(View):
    """The groups that read what the transaction writes. Those that read committed records wait for it."""

    readers: tuple[ReaderRow, ...]
    why_not: str
    unseen: tuple[str, ...]


def load_readers(context: Context) -> Readers:
    """The groups with positions or members in the transaction's partitions."""
    state = state_of(context)
    places = set(places_of(state))
    unseen: list[str] = []
    rows: list[ReaderRow] = []
    why_not = ""
    listed = coordinated(context, unseen) if places else {}
    if len(listed) > GROUPS_MAX:
        why_not = f"The cluster has more than {count(GROUPS_MAX, 'group')}, so their positions are not read here."
        listed = {}
    for group in described(context, listed, unseen):
        reads = (group.owned | group.committed.keys()) & places
        if reads:
            rows.append(ReaderRow(group.name, group.type, len(group.members), len(reads)))
    return Readers(
        title="Groups that read these partitions",
        command=context.command("groups", "describe", "--held-back"),
        readers=tuple(rows),
        why_not=why_not,
        unseen=tuple(unseen),
    )


# ---- abort ---------------------------------------------------------------------------------------------------------


def open_state(context: Context) -> Any:
    """The state of the id, whose transaction can be aborted. Raises InputError."""
    state = state_of(context)
    if state.transaction_state != "Ongoing":
        raise InputError(f"It has no transaction to abort: it is in state {state.transaction_state}.")
    return state


def abort_preview(context: Context) -> Preview:
    """The effects on records and producer."""
    state = open_state(context)
    places = places_of(state)
    open_ms = max(0, context.now_ms - state.transaction_start_time_ms)
    left_s = max(0, state.transaction_timeout_ms - open_ms) / 1000
    return Preview(
        state.transactional_id,
        (
            f"Aborts the transaction of {visible(state.transactional_id)} in {count(len(places), 'partition')}, "
            f"open for {duration(open_ms / 1000)}.",
            f"Its coordinator aborts it by itself in {duration(left_s)}.",
        ),
        ("Its records are never committed, and its producer is fenced: if it still runs, it has to be restarted.",),
        facts=(state.producer_id, state.producer_epoch, state.transaction_start_time_ms),
        command=context.command("transactions", "abort", state.transactional_id),
    )


def abort(context: Context) -> Done:
    """Fence the producer, which aborts its transaction."""
    state = open_state(context)
    fence_producer(context.client, state.transactional_id, state.transaction_timeout_ms)
    name = state.transactional_id
    details = {
        "transactional_id": name,
        "producer_id": state.producer_id,
        "partitions": [f"{topic}-{index}" for topic, index in places_of(state)],
    }
    sentence = f"Aborted the transaction of {visible(name)} and fenced its producer."
    return Done(sentence, url("/transaction", name=name), details)


PAGE: Final = Page(
    name="transaction",
    path="/transaction",
    load=load,
    under="/transactions",
    refresh_s=5,
    parts=(Part("readers", "Groups that read these partitions", load_readers, refresh_s=30),),
    changes=(Change("abort", "Abort the transaction", abort_preview, abort),),
)
