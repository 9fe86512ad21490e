"""Holds the metadata that this node knows, and changes it.

Changes wait for their turn. A change is planned from the newest image when all changes before it have ended. It writes
batches of rows, each all or none. Once a batch is committed, the image applies it like one of any other writer. So if
two requests ask for the same thing, even at once, the second one finds what the first has made. A request with a
deadline is notified at that time that the store has not answered. Changes that the store had received by then may or
may not be done. When the image moves, `tell` is called.

    def make_topic(now):                    # a `Change`: planned again if another writer was faster
        if "t" in metadata.image.topics:
            return "it exists"
        yield Batch([RowChange(...)])       # raises StoreError if it was not done
        return "made"

Every batch also writes the node's mark, a row of its own. If the outcome of a commit is unknown, the store is read
again, and the mark shows whether it was done.

Invariants: the image is at the generation of the last delta that the node received, and deltas arrive in order. At most
one commit of this node is in progress.

Source: Kafka's QuorumController.java: one event at a time, each seeing the state after those before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, assert_never

from ottla.broker.completions import Completions
from ottla.broker.effects import (
    Commit,
    CommitOutcome,
    Committed,
    Conflicted,
    NotCommitted,
    Outbox,
    OutcomeUnknown,
    Reading,
    Reread,
    Unread,
)
from ottla.broker.schedule import KeyedTimers, Schedule, Timed, Timer
from ottla.machine import Entropy, Millis
from ottla.metadata.image import MetadataDelta, MetadataImage, changed, delta_since, read_image
from ottla.metadata.row_kinds import Record, Row, encoded
from ottla.metadata.store import CommitUnknownError, Delete, MetadataStore, Put, StoreError, VersionGuard, Write

PLANS_MAX: Final = 10
"""How often a change is planned while other writers are faster."""
CHANGES_MAX: Final = 10_000
"""How many changes may wait for their turn; more of them fail."""
RETRY_MS: Final = 500
"""How long a store that could not be read is left alone."""


class DeadlineExceededError(StoreError):
    """The change's deadline passed before the store answered; the outcome is unknown."""

    def __init__(self) -> None:
        super().__init__("the metadata store has not answered in time; whether it will be done is not known")


class RowChange(NamedTuple):
    """A row to be written, or to be removed if `record` is None; `expected` as in `store.Put`."""

    key: str
    record: Record | None
    expected: int | None = None


class RowBatch(NamedTuple):
    """The rows that a change writes at once; `also`: rows that no image has; `guards`: as in `MetadataStore.commit`."""

    rows: Sequence[RowChange]
    also: Sequence[Write] = ()
    guards: Sequence[VersionGuard] = ()

    def writes(self) -> list[Write]:
        rows: list[Write] = [
            Delete(key, expected) if record is None else Put(key, encoded(record), expected)
            for key, record, expected in self.rows
        ]
        return [*rows, *self.also]

    def delta(self, generation: int) -> MetadataDelta:
        """The delta that this batch applies to the image."""
        written = {key: None if record is None else Row(record, generation) for key, record, _ in self.rows}
        return MetadataDelta(generation, written)


Planned: TypeAlias = Generator[RowBatch | None, None, Any]
"""The batches of a change. After None, other requests are served before the plan continues."""
Change: TypeAlias = Callable[[Millis], Planned]


def planned(batch: RowBatch) -> Planned:
    """The plan to write this batch, independent of the image."""
    yield batch


class AwaitsChange(Protocol):
    """Waits for a change; notified exactly once, by a completion."""

    def change_ended(self, now: Millis, result: Any) -> None:
        """The change has ended, with this result of its plan."""
        ...

    def change_failed(self, now: Millis, error: Exception) -> None:
        """The plan raised this exception: StoreError if the plan did not catch it, otherwise an unexpected
        exception."""
        ...


class NobodyAwaits:
    """The waiter of a change that the node makes by itself. `fault` receives unexpected exceptions."""

    def __init__(self, what: str, fault: Callable[[str, Exception], None]) -> None:
        self._what = what
        self._fault = fault

    def change_ended(self, now: Millis, result: Any) -> None:
        """Everything follows from the image."""

    def change_failed(self, now: Millis, error: Exception) -> None:
        self._fault(f"{self._what} failed", error)


@dataclass(eq=False, slots=True)
class _Turn:
    """A change that waits for its turn, or whose turn has come. `number`: its number in order."""

    number: int
    change: Change
    awaits: AwaitsChange
    is_given_up: bool = False
    """The waiter has been notified that the change timed out; only the commit in progress is still followed."""
    plans: int = 0
    planned: Planned | None = None
    batch: RowBatch = field(default=RowBatch(()))
    mark: bytes = b""
    token: int = 0
    outcome: CommitOutcome | None = None
    """Why the store is read again."""
    is_over: bool = False
    """The plan has ended with `result`; the waiter is notified once the node has followed the image."""
    result: Any = None


class Metadata:
    """`tell` gets every delta that changes the image. `node_id`: whose mark the batches write."""

    def __init__(
        self,
        store: MetadataStore,
        outbox: Outbox,
        schedule: Schedule,
        completions: Completions,
        tell: Callable[[Millis, MetadataDelta], None],
        *,
        node_id: int,
        entropy: Entropy,
    ) -> None:
        self._store = store
        self._outbox = outbox
        self._completions = completions
        self._tell = tell
        self._entropy = entropy
        self._mark_key = f"commits/{node_id}"
        self._life = b""
        self._waiting: deque[_Turn] = deque()
        self._turn: _Turn | None = None
        self._changes = 0
        self._patience = KeyedTimers[int](schedule, Timed.METADATA, self._give_up_late)
        """Until when changes are waited for, by number."""
        self._retry = Timer(schedule, Timed.METADATA, self._read_later)
        self._next_slice = Timer(schedule, Timed.METADATA, self._plan_on)
        self.image = MetadataImage()
        self._followed: int | None = None

    # ---- the image -------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """At start: read everything in the store. Raises StoreError."""
        self.image = read_image(self._store)

    def move(self, delta: MetadataDelta) -> MetadataImage:
        """Apply this delta to the image; returns the previous image."""
        before, self.image = self.image, changed(self.image, delta)
        return before

    def node_is_behind(self, before: MetadataImage) -> None:
        """The node has begun to follow the image, which was this one before, and needs several slices for that. Until
        then, no change ends: a client that creates a topic may use it once it has its answer."""
        if self._followed is None:
            self._followed = before.generation

    def node_has_followed(self, now: Millis) -> None:
        """The node matches the image."""
        self._followed = None
        turn = self._turn
        if turn is not None and turn.is_over:
            self._end_well(turn, turn.result)
            self._go_on(now)

    @property
    def followed(self) -> int:
        """The generation of the newest image that this node has followed."""
        return self.image.generation if self._followed is None else self._followed

    def at_once(self, now: Millis, planned: Planned) -> Any:
        """Carry out this plan while no host carries out effects: at start, before any client is served, and at a clean
        stop.

        An unknown outcome counts as a failure. On a remote store these changes only remove rows, which is safe to
        repeat. Raises StoreError, ConflictError, and what the plan raises.
        """
        failed: StoreError | None = None
        while True:
            try:
                batch = next(planned) if failed is None else planned.throw(failed)
            except StopIteration as ended:
                return ended.value
            if batch is None:
                failed = None
                continue
            try:
                generation = self._store.commit(batch.writes(), batch.guards)
            except (StoreError, CommitUnknownError) as error:
                failed = error if isinstance(error, StoreError) else StoreError(str(error))
                continue
            failed = None
            is_next = generation == self.image.generation + 1
            self._tell(now, batch.delta(generation) if is_next else delta_since(self._store, self.image))

    @property
    def changing(self) -> bool:
        """Whether a change is in progress."""
        return self._turn is not None

    # ---- changes ---------------------------------------------------------------------------------------------------

    def change(self, now: Millis, change: Change, awaits: AwaitsChange, until: Millis | None = None) -> None:
        """Make this change once all before it have ended. If that is later than `until`, its plan gets
        DeadlineExceededError."""
        if until is not None and until <= now:
            self._refuse(now, change, awaits, DeadlineExceededError())
            return
        if len(self._waiting) >= CHANGES_MAX:
            self._refuse(now, change, awaits, StoreError(f"{CHANGES_MAX} changes of the metadata wait already"))
            return
        self._changes += 1
        self._waiting.append(_Turn(self._changes, change, awaits))
        if until is not None:
            self._patience.set(self._changes, until)
        self._go_on(now)

    def committed(self, now: Millis, token: int, outcome: CommitOutcome) -> None:
        """Handle the outcome of the commit of this token."""
        turn = self._turn_of(token)
        match outcome:
            case Committed(generation):
                if self.image.generation < generation - 1:
                    self._read_again(turn, outcome)
                else:
                    self._done(now, turn, generation)
            case NotCommitted(why):
                self._step(now, turn, StoreError(why))
            case Conflicted() | OutcomeUnknown():
                self._read_again(turn, outcome)
        self._go_on(now)

    def reread(self, now: Millis, token: int, answer: Reading | Unread) -> None:
        """Handle the rows that the image lacks, read after a commit that failed or whose outcome is unknown."""
        turn = self._turn_of(token)
        if isinstance(answer, Unread):
            self._retry.set(now + RETRY_MS)
            return
        outcome, turn.outcome = turn.outcome, None
        try:
            if answer.delta.generation >= self.image.generation:  # otherwise a newer delta has arrived meanwhile
                self._tell(now, answer.delta)
        except Exception as error:
            self._end_badly(turn, error)
        else:
            match outcome:
                case Committed(generation):
                    self._done(now, turn, generation)
                case OutcomeUnknown() if answer.value == turn.mark:
                    self._step(now, turn)
                case Conflicted(why) | OutcomeUnknown(why):
                    self._plan_again(now, turn, why)
                case NotCommitted() | None:
                    raise AssertionError(f"the store was read again after {outcome}")
                case _:
                    assert_never(outcome)
        self._go_on(now)

    def _give_up_late(self, now: Millis) -> None:
        """Give up the changes whose deadline has passed."""
        while (number := self._patience.pop(now)) is not None:
            self._give_up(now, number)

    def _read_later(self, now: Millis) -> None:
        """Read the store again, which could not be read."""
        turn = self._turn
        assert turn is not None
        assert turn.outcome is not None
        self._read_again(turn, turn.outcome)

    # ---- the change whose turn it is -------------------------------------------------------------------------------

    def _turn_of(self, token: int) -> _Turn:
        turn = self._turn
        assert turn is not None, f"no commit is under way, and {token} ended"
        assert turn.token == token, f"commit {turn.token} is under way, and {token} ended"
        return turn

    def _go_on(self, now: Millis) -> None:
        """Run the waiting changes in turn, until one has to wait for a commit."""
        while self._turn is None and self._waiting:
            turn = self._turn = self._waiting.popleft()
            self._plan(now, turn)

    def _plan(self, now: Millis, turn: _Turn) -> None:
        turn.plans += 1
        turn.planned = turn.change(now)
        self._step(now, turn)

    def _plan_again(self, now: Millis, turn: _Turn, why: str) -> None:
        if turn.is_given_up or turn.plans == PLANS_MAX:
            self._step(now, turn, StoreError(f"other nodes change the metadata all the time: {why}"))
        else:
            assert turn.planned is not None
            turn.planned.close()
            self._plan(now, turn)

    def _done(self, now: Millis, turn: _Turn, generation: int) -> None:
        """The batch of this turn is committed."""
        try:
            if self.image.generation < generation:
                self._tell(now, turn.batch.delta(generation))
        except Exception as error:
            self._end_badly(turn, error)
        else:
            self._step(now, turn)

    def _step(self, now: Millis, turn: _Turn, failed: StoreError | None = None) -> None:
        """Continue the plan of this turn to its next batch, or to its end."""
        assert turn.planned is not None
        if turn.is_given_up:
            self._turn = None
            return
        try:
            batch = next(turn.planned) if failed is None else turn.planned.throw(failed)
        except StopIteration as ended:
            self._end_well(turn, ended.value)
        except Exception as error:
            self._end_badly(turn, error)
        else:
            if batch is None:
                self._next_slice.set(now)
                return
            turn.batch, turn.token = batch, self._outbox.new_token()
            turn.mark = b"%s-%d" % (self._name_of_life(), turn.token)
            writes = [*turn.batch.writes(), Put(self._mark_key, turn.mark)]
            self._outbox.add(Commit(turn.token, writes, turn.batch.guards))

    def _plan_on(self, now: Millis) -> None:
        """Continue a plan that let others go first."""
        assert self._turn is not None
        self._step(now, self._turn)
        self._go_on(now)

    def _end_well(self, turn: _Turn, result: Any) -> None:
        turn.is_over, turn.result = True, result
        if turn.is_given_up:
            self._turn = None
        elif self._followed is None:
            self._end(turn)
            self._completions.add(turn.awaits.change_ended, result)

    def _end(self, turn: _Turn) -> None:
        self._turn = None
        self._patience.cancel(turn.number)

    def _end_badly(self, turn: _Turn, error: Exception) -> None:
        self._end(turn)
        if turn.is_given_up:
            raise error
        self._completions.add(turn.awaits.change_failed, error)

    def _give_up(self, now: Millis, number: int) -> None:
        """The change of this number is given up. Its commit in progress continues, and the image will show the
        outcome."""
        turn = self._turn
        if turn is None or turn.number != number:
            turn = next(turn for turn in self._waiting if turn.number == number)
            self._waiting.remove(turn)
            self._refuse(now, turn.change, turn.awaits, DeadlineExceededError())
            return
        assert turn.planned is not None
        if turn.is_over:  # only this node has still to follow
            self._end(turn)
            self._completions.add(turn.awaits.change_ended, turn.result)
            self._go_on(now)
            return
        turn.is_given_up = True
        self._fail(turn.planned, turn.awaits, DeadlineExceededError())

    def _read_again(self, turn: _Turn, why: CommitOutcome) -> None:
        """Bring the image up to the store before this turn continues."""
        turn.outcome = why
        self._outbox.add(Reread(turn.token, self.image, self._mark_key))

    def _refuse(self, now: Millis, change: Change, awaits: AwaitsChange, why: StoreError) -> None:
        """Fail a change without asking the store, as if the store had failed."""
        planned = change(now)
        try:
            next(planned)
        except StopIteration as ended:
            self._completions.add(awaits.change_ended, ended.value)
        except Exception as error:
            self._completions.add(awaits.change_failed, error)
        else:
            self._fail(planned, awaits, why)

    def _fail(self, planned: Planned, awaits: AwaitsChange, why: StoreError) -> None:
        """The batch that this plan has yielded has failed, as far as the plan can know; the plan ends with that."""
        try:
            planned.throw(why)
        except StopIteration as ended:
            self._completions.add(awaits.change_ended, ended.value)
        except Exception as error:
            self._completions.add(awaits.change_failed, error)
        else:
            planned.close()
            self._completions.add(awaits.change_failed, why)

    def _name_of_life(self) -> bytes:
        """Distinguishes the marks of this incarnation from those of others."""
        if not self._life:
            self._life = self._entropy.randbytes(8).hex().encode()
        return self._life
