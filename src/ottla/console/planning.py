"""Makes plans that move replicas, shows them, and keeps the plan of a session from its preview to its confirmation.

A plan depends on the sizes of partitions, which grow all the time. So the plan that was shown is the one that is
carried out, as long as the replicas and nodes that it is about have not changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ottla.client.placement.balance import Move
from ottla.client.placement.moving import Layout, layout_of
from ottla.client.placement.plan import NodeShare, after, crowded, shares_of
from ottla.console.page import Context, Field, InputError, Paged, View, paged
from ottla.doctor.words import count, size

ROWS_OF_PREVIEW: Final = 200
THROTTLE_MAX: Final = (1 << 63) - 1
KEPT: Final = "plan"
"""The plan that a session has seen last, in its memory."""


class Planned(NamedTuple):
    """The layout of the cluster, and the moves that a plan makes in it."""

    layout: Layout
    moves: list[Move]

    @property
    def copies(self) -> list[Move]:
        """The moves that copy replicas to other nodes."""
        return [move for move in self.moves if set(move.before) != set(move.after)]

    @property
    def reorders(self) -> list[Move]:
        """The moves that only make another replica the preferred leader."""
        return [move for move in self.moves if set(move.before) == set(move.after)]

    @property
    def bytes(self) -> int:
        return sum(move.bytes_moved for move in self.moves)

    @property
    def facts(self) -> list[Any]:
        """The facts that must still hold when the user confirms the plan."""
        return [(*move.place, move.before, move.after) for move in self.moves]


@dataclass(frozen=True, slots=True)
class _Kept:
    kind: str
    racks: dict[int, str | None]
    moves: list[Move]

    def is_of(self, kind: str, layout: Layout) -> bool:
        """Whether the cluster is still as this plan found it. A plan without moves fits nothing."""
        replicas = {each.place: each.nodes for each in layout.places}
        return (
            bool(self.moves)
            and (self.kind, self.racks) == (kind, layout.racks)
            and all(replicas.get(move.place) == move.before for move in self.moves)
        )


def planned(context: Context, kind: str, make: Callable[[Layout], list[Move]], *, is_new: bool = False) -> Planned:
    """A plan of this kind: with `is_new` for the present sizes, otherwise the one that the session has seen, if it
    still fits. Raises ClientError, and what `make` raises."""
    layout = layout_of(context.client)
    kept: _Kept | None = context.session.memory.get(KEPT)
    if is_new or kept is None or not kept.is_of(kind, layout):
        kept = _Kept(kind, layout.racks, make(layout))
        context.session.memory[KEPT] = kept
    return Planned(layout, kept.moves)


# ---- view ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """A partition of a plan. `bytes` are copied for it."""

    topic: str
    partition: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(View):
    """A plan: each node before and after, and a page of the moves. `copies` counts partitions with replicas that are
    copied, `reorders` those that only get another preferred leader. `crowded`: partitions with two replicas in a rack
    although another rack has none, before and after. `under_way` counts moves that were started earlier; the plan
    begins where they end. `down`: nodes that do not answer."""

    nodes: tuple[NodeShare, ...]
    down: tuple[int, ...]
    paged: Paged
    moves: tuple[PlannedRow, ...]
    copies: int
    reorders: int
    bytes: int
    crowded: tuple[int, int]
    under_way: int


def facts_of(context: Context, plan: Planned) -> dict[str, Any]:
    """The fields of a plan's view."""
    layout, moves = plan
    hosts = {node for each in layout.places for node in each.nodes}
    racks = {**dict.fromkeys(hosts), **layout.racks}
    where, rows = paged(moves, context.number("page", 1))
    return {
        "nodes": tuple(shares_of(racks, layout.places, moves, layout.leaders)),
        "down": tuple(sorted(hosts - layout.racks.keys())),
        "paged": where,
        "moves": tuple(row_of(each) for each in rows),
        "copies": len(plan.copies),
        "reorders": len(plan.reorders),
        "bytes": plan.bytes,
        "crowded": (crowded(layout.racks, layout.places), crowded(layout.racks, after(layout.places, moves))),
        "under_way": len(layout.moved),
    }


def row_of(move: Move) -> PlannedRow:
    """The row of a move."""
    return PlannedRow(*move.place, move.before, move.after, move.bytes_moved)


# ---- preview -------------------------------------------------------------------------------------------------------

COLUMNS: Final = ("Topic", "Partition", "Replicas now", "Replicas after", "To copy")


def throttle_field(_: Context) -> tuple[Field, ...]:
    """The field for the speed of the moves."""
    hint = "Empty: unlimited. The limit stays until you finish the moves on the page of the cluster."
    return (Field("throttle", "Bytes per second that each node copies at most", "number", hint=hint),)


def throttle_in(context: Context) -> int | None:
    """The speed in the form, None for no limit. Raises InputError."""
    text = context.form.get("throttle", "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20 and 0 < int(text) <= THROTTLE_MAX):
        raise InputError("Give a number of bytes per second, or nothing.")
    return int(text)


def rows_of(moves: Sequence[Move]) -> tuple[tuple[object, ...], ...]:
    """The rows of a preview."""
    return tuple(
        (*move.place, joined(move.before), joined(move.after), size(move.bytes_moved))
        for move in moves[:ROWS_OF_PREVIEW]
    )


def joined(nodes: Sequence[int]) -> str:
    return ", ".join(map(str, nodes))


def sentences_of(plan: Planned, throttle: int | None) -> list[str]:
    """The moves of a plan, and their speed."""
    found: list[str] = []
    if plan.copies:
        limit = "as fast as they can" if throttle is None else f"at most {size(throttle)} a second each"
        found.append(
            f"Copies replicas of {count(len(plan.copies), 'partition')} to other nodes, {size(plan.bytes)} in all. "
            f"Nodes copy {limit}."
        )
    if plan.reorders:
        found.append(f"Changes only the preferred leader of {count(len(plan.reorders), 'partition')}; copies nothing.")
    if len(plan.moves) > ROWS_OF_PREVIEW:
        found.append(f"The first {ROWS_OF_PREVIEW} partitions are listed here.")
    return found


def begun(plan: Planned, throttle: int | None) -> str:
    """The sentence after the start of a plan."""
    finish = "" if throttle is None else " When they have ended, finish them here: that removes the throttle."
    copies = f"Moving replicas of {count(len(plan.copies), 'partition')}, {size(plan.bytes)} in all; see Moves."
    return copies + finish if plan.copies else f"Changed the order of {count(len(plan.reorders), 'partition')}."
