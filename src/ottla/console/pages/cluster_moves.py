"""Shows moves of partitions with their progress, and their throttle; cancels moves, and finishes those that ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ottla.client.client import TopicPartition
from ottla.client.placement import moving, throttles
from ottla.client.placement.moving import Moved
from ottla.console.page import Context, Done, InputError, Paged, Preview, View, paged
from ottla.console.reading import leaders_of, metadata_of_all, sizes
from ottla.doctor.words import count, names, place
from ottla.escaping import visible
from ottla.protocol.config_resources import ConfigResourceType

# ---- moves ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MoveRow:
    """A partition that is being moved. `copied` and `size` are bytes: of the new replica that has the fewest, and of
    the leader's log; None if unknown. `down`: new replicas' nodes that are down, for which the move waits."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    copied: int | None
    size: int | None
    down: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves(View):
    """The moves of partitions, a page of them."""

    paged: Paged
    moves: tuple[MoveRow, ...]


def load(context: Context) -> Moves:
    """The ongoing moves and their progress."""
    moved = moving.under_way(context.client)
    where, shown = paged(sorted(moved.items()), context.number("page", 1))
    wanted = {each for each, _ in shown}
    metadata = metadata_of_all(context)
    up = {each.node_id for each in metadata.brokers}
    leaders = {each: leader for each, leader in leaders_of(metadata.topics).items() if each in wanted}
    unseen: list[str] = []
    whole = sizes(context, leaders, unseen=unseen)
    copied: dict[TopicPartition, list[int]] = {}
    for node_id in sorted({node_id for _, each in shown for node_id in each.adding if node_id in up}):
        of_node = {each: node_id for each, part in shown if node_id in part.adding}
        have = sizes(context, of_node, unseen=unseen)
        for each in of_node:
            copied.setdefault(each, []).append(have.get(each, 0))
    rows = [move_row(each, part, whole, copied, up) for each, part in shown]
    command = context.command("topics", "reassign", "--list")
    return Moves(title="Moves", command=command, paged=where, moves=tuple(rows))


def move_row(
    each: TopicPartition,
    part: Moved,
    whole: Mapping[TopicPartition, int],
    copied: Mapping[TopicPartition, list[int]],
    up: set[int],
) -> MoveRow:
    """The row of a move; `up`: the nodes that answer."""
    down = tuple(node_id for node_id in part.adding if node_id not in up)
    return MoveRow(*each, *part, min(copied[each]) if each in copied else None, whole.get(each), down)


def move_named(context: Context) -> tuple[TopicPartition, Moved]:
    """The move that the address names. Raises InputError if it has ended."""
    each = context.need("topic"), context.number("partition", 0)
    moved = moving.under_way(context.client)
    if each not in moved:
        raise InputError(f"{visible(place(each))} is not being moved.")
    return each, moved[each]


def cancel_preview(context: Context) -> Preview:
    """The effect of cancelling a move."""
    each, moved = move_named(context)
    adding = ", ".join(map(str, moved.adding)) or "none"
    return Preview(
        each[0],
        (f"Cancels the move of {visible(place(each))}. The copies that nodes {adding} have made are deleted.",),
        facts=(moved.replicas, moved.adding),
        command=context.command("topics", "reassign", each[0], "--cancel"),
    )


def cancel(context: Context) -> Done:
    """Cancel the move."""
    each, _ = move_named(context)
    moving.cancel(context.client, [each])
    return Done(f"Cancelled the move of {visible(place(each))}.", "/cluster", {"partition": place(each)})


def all_moves(context: Context) -> dict[TopicPartition, Moved]:
    """The ongoing moves. Raises InputError if there are none."""
    moved = moving.under_way(context.client)
    if not moved:
        raise InputError("No partition is being moved.")
    return moved


def cancel_all_preview(context: Context) -> Preview:
    """The effect of cancelling every move."""
    moved = all_moves(context)
    return Preview(
        "cluster",
        (
            f"Cancels the moves of {count(len(moved), 'partition')} that have not ended, and deletes the copies that "
            "they have made. Moves that have ended stay.",
        ),
        facts=sorted(moved),
        command=context.command("topics", "reassign", "--cancel"),
    )


def cancel_all(context: Context) -> Done:
    """Cancel every move, and remove the throttle."""
    moved = all_moves(context)
    moving.cancel(context.client, moved)
    return Done(f"Cancelled the moves of {count(len(moved), 'partition')}.", "/cluster", {"partitions": len(moved)})


# ---- throttle ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ThrottleRow:
    """A node that copies at most so many bytes a second for moves."""

    node: int
    rate: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttle(View):
    """The nodes that moves are throttled on."""

    nodes: tuple[ThrottleRow, ...]


def load_throttle(context: Context) -> Throttle:
    """The nodes with a limit for moves."""
    client = context.client
    rates = {node: throttles.rate_of(client, node) for node in sorted(throttles.serving(client))}
    return Throttle(
        title="Throttle of moves",
        command=context.command("topics", "reassign", "--verify"),
        nodes=tuple(ThrottleRow(node, rate) for node, rate in rates.items() if rate is not None),
    )


def finish_preview(context: Context) -> Preview:
    """The throttles that would be removed. Raises InputError while something is moved, and if there are none."""
    moved = moving.under_way(context.client)
    if moved:
        raise InputError(f"Moves of {count(len(moved), 'partition')} have not ended: wait for them.")
    left = throttles.left(context.client)
    if not left:
        raise InputError("No throttle of moves is left.")
    nodes = sorted(int(name) for kind, name in left if kind == ConfigResourceType.BROKER)
    topics = sorted(visible(name) for kind, name in left if kind == ConfigResourceType.TOPIC)
    of_nodes = f"{count(len(nodes), 'node')} ({', '.join(map(str, nodes))})" if nodes else ""
    of_topics = f"{count(len(topics), 'topic')} ({names(topics)})" if topics else ""
    return Preview(
        "cluster",
        (f"Removes the throttle of earlier moves from {' and '.join(filter(None, (of_nodes, of_topics)))}.",),
        facts=sorted(left),
        command=context.command("topics", "reassign", "--verify"),
    )


def finish(context: Context) -> Done:
    """Remove the throttles."""
    lifted = moving.lift(context.client)
    return Done("Removed the throttle of moves.", "/cluster", {"lifted": lifted})
