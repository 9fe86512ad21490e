"""Carries out moves of replicas for a command: waits until they end, shows their progress, and elects the preferred
leaders.

If the command is interrupted, the cluster continues the moves, with their throttle; `ottla topics reassign --verify`
removes it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ottla.cli.output import counted, say

if TYPE_CHECKING:
    from ottla.client import Client
    from ottla.client.placement.balance import Move, TopicPartition


def carry_out(
    client: Client, moves: Sequence[Move], throttle: int | None, asked: Collection[TopicPartition] = ()
) -> int:
    """Move replicas and wait until the moves end, including moves in progress of the partitions `asked`; then elect the
    preferred leaders.

    `throttle`: bytes a second that each node sends and receives for the moves. Returns the number of partitions that
    were waited for. Raises ClientError.
    """
    from ottla.client.placement import moving
    from ottla.client.placement.balance import Move

    moved = moving.under_way(client)
    begun = sorted(moved.keys() & set(asked) - {move.place for move in moves})
    if begun:
        say(f"Waiting for moves that are already in progress there: {counted(len(begun), 'partition')}.", err=True)
    waited = [move._replace(before=moved[move.place].before) if move.place in moved else move for move in moves]
    waited += [Move(place, moved[place].before, moved[place].after) for place in begun]
    if not waited:
        return 0
    moving.start(client, moves, throttle, waited)
    finish(client, [move.place for move in waited])
    if throttle is not None:
        moving.lift(client, {move.place[0] for move in waited})
    moving.wait_until_known(client, waited)
    moving.elect(client, [move.place for move in waited])
    return len(waited)


def finish_earlier(client: Client) -> None:
    """Wait for moves that were started earlier, and remove their throttles. Raises ClientError."""
    from ottla.client.placement import moving

    moved = moving.under_way(client)
    if moved:
        say(f"Waiting first for moves that are already in progress: {counted(len(moved), 'partition')}.", err=True)
        finish(client, moved)
        moving.lift(client, {name for name, _ in moved})


def finish(client: Client, places: Iterable[TopicPartition]) -> None:
    """Wait until the moves of all these partitions end, and show their progress."""
    from ottla.client.placement import moving

    wanted = set(places)
    with shown(len(wanted)) as show:
        try:
            while left := wanted & set(moving.under_way(client)):
                show(len(wanted) - len(left))
                time.sleep(moving.LOOK_S)
        except KeyboardInterrupt:
            say(
                "The cluster continues the moves. `ottla topics reassign --verify` shows their progress, and "
                "removes their throttle when they are complete.",
                err=True,
            )
            raise
        show(len(wanted))


@contextmanager
def shown(total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on a terminal, nothing elsewhere; the yielded function takes the number that is done."""
    if not sys.stdout.isatty():
        yield lambda done: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    with Progress(TextColumn("moving"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()) as bar:
        task = bar.add_task("", total=total)
        yield lambda done: bar.update(task, completed=done)
