"""A share partition against a twin that keeps one entry an offset and knows nothing of runs.

The twin is told the same events. Its coordinator applies writes in order and is what a restart begins with. Checked
after every step: the same state for every offset, at most one holder, no delivery count above the limit, nothing
delivered that is held, held back or done, everything below the start done or gone from the log.
"""

from dataclasses import dataclass

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ottla.protocol.errors import ErrorCode
from ottla.share.deadlines import rounded
from ottla.share.partition import SharePartition
from ottla.share.settings import ShareSettings
from ottla.share.standing import InFlight, State, StateBatch, Write

MEMBERS = st.sampled_from(["a", "b", "c"])
START = 100
LOCK_MS = 1000


def in_pages(real: SharePartition) -> list[InFlight]:
    """Everything in flight, asked for in small pages."""
    found: list[InFlight] = []
    offset: int | None = real.start
    while offset is not None:
        page, offset = real.in_flight_from(offset, runs_max=2, examined_max=3)
        found += page
    return found


@dataclass
class Entry:
    state: State = State.AVAILABLE
    count: int = 0
    member: str = ""
    time: int = 0
    pending: int = 0


class Coordinator:
    """What was written: a start offset and a state for each offset."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.known: dict[int, tuple[int, int]] = {}

    def take(self, write: Write) -> None:
        self.start = max(self.start, write.start_offset)
        for first, last, state, count in write.batches:
            self.known.update(dict.fromkeys(range(first, last + 1), (state, count)))
        self.known = {offset: known for offset, known in self.known.items() if offset >= self.start}


class PartitionTwin(RuleBasedStateMachine):
    @initialize(
        limit=st.integers(2, 6),
        locks=st.sampled_from([5, 50, 1000]),
        backoff=st.sampled_from([0, 0, 300]),
        letters=st.booleans(),
    )
    def begin(self, limit: int, locks: int, backoff: int, letters: bool) -> None:
        self.settings = ShareSettings(
            lock_duration_ms=LOCK_MS,
            delivery_count_limit=limit,
            record_locks_max=locks,
            backoff_ms=backoff,
            backoff_ms_max=1000,
            dead_letters=letters,
        )
        self.now = 1_000_000
        self.real = SharePartition(self.settings, START)
        self.twin: dict[int, Entry] = {}
        self.start = self.end = START
        self.log_start = 0
        self.coordinator = Coordinator(START)
        self.unanswered: list[Write] = []
        self.delivered_to: dict[int, list[str]] = {}
        self.on_their_way: set[int] = set()

    # ---- what the twin does ----------------------------------------------------------------------------------------

    def twin_after(self, entry: Entry, kind: int) -> Entry:
        if kind == 1:
            return Entry(State.ACKNOWLEDGED, entry.count)
        if kind == 0:
            return Entry(State.ARCHIVED, entry.count)
        if kind == 3 or entry.count >= self.settings.delivery_count_limit:
            return Entry(State.ARCHIVING if self.settings.dead_letters else State.ARCHIVED, entry.count)
        return self.twin_back(entry.count)

    def twin_back(self, count: int) -> Entry:
        delay = min(int(self.settings.backoff_ms * 2.0 ** (count - 1)), 1000) if self.settings.backoff_ms else 0
        return Entry(State.AVAILABLE, count, "", rounded(self.now + delay) if delay else 0)

    def twin_advance(self) -> None:
        while self.start < self.end and self.twin[self.start].state in (State.ACKNOWLEDGED, State.ARCHIVED):
            del self.twin[self.start]
            self.start += 1

    def submit(self) -> None:
        self.unanswered += self.real.take_writes()
        for letter in self.real.take_letters():
            self.on_their_way |= set(range(letter.first, letter.end))

    # ---- events ----------------------------------------------------------------------------------------------------

    @rule(member=MEMBERS, want=st.integers(1, 30), batch=st.integers(1, 12))
    def fetch(self, member: str, want: int, batch: int) -> None:
        held = sum(entry.state == State.ACQUIRED for entry in self.twin.values())
        piece = self.real.next_piece(self.now)
        if held >= self.settings.record_locks_max:
            assert piece is None
            return
        open_ones = [
            o
            for o, e in sorted(self.twin.items())
            if e.state == State.AVAILABLE and e.time <= self.now and not e.pending
        ]
        assert piece is not None
        assert piece.first == (open_ones[0] if open_ones else self.end)
        end = min(piece.end if piece.end is not None else piece.first + batch, piece.first + want)
        count = self.real.acquire(self.now, member, piece.first, end)
        for offset in range(piece.first, end):
            entry = self.twin.setdefault(offset, Entry())
            assert entry.state == State.AVAILABLE
            assert entry.count + 1 == count <= self.settings.delivery_count_limit
            if count >= self.settings.delivery_count_limit > 2:
                assert end == piece.first + 1, "the last attempt is alone"
            self.twin[offset] = Entry(State.ACQUIRED, count, member, rounded(self.now + LOCK_MS))
        self.end = max(self.end, end)

    @rule(length=st.integers(1, 8))
    def skip(self, length: int) -> None:
        self.real.skip(self.end, self.end + length)
        self.twin.update({o: Entry(State.ARCHIVED) for o in range(self.end, self.end + length)})
        self.end += length
        self.twin_advance()

    @rule(length=st.integers(1, 8), delay=st.integers(1, 2000))
    def hold_back(self, length: int, delay: int) -> None:
        self.real.hold_back(self.end, self.end + length, self.now + delay)
        time = rounded(self.now + delay)
        self.twin.update({o: Entry(State.AVAILABLE, 0, "", time) for o in range(self.end, self.end + length)})
        self.end += length

    @rule(
        member=MEMBERS,
        at=st.floats(0, 1),
        kinds=st.lists(st.sampled_from([0, 1, 1, 1, 2, 2, 3, 4]), min_size=1, max_size=12),
        whole=st.booleans(),
        answer=st.sampled_from(["yes", "yes", "no", "later"]),
    )
    def acknowledge_anything(self, member: str, at: float, kinds: list[int], whole: bool, answer: str) -> None:
        first = max(0, self.start - 3) + int(at * (self.end - self.start + 6))
        self._acknowledge(member, first, kinds, whole, answer)

    @rule(
        pick=st.integers(0, 50),
        kinds=st.lists(st.sampled_from([0, 1, 1, 2, 2, 2, 3, 4]), min_size=1, max_size=12),
        whole=st.booleans(),
        answer=st.sampled_from(["yes", "yes", "yes", "no", "later"]),
    )
    def acknowledge_held(self, pick: int, kinds: list[int], whole: bool, answer: str) -> None:
        held = [o for o, e in sorted(self.twin.items()) if e.state == State.ACQUIRED]
        if held:
            first = held[pick % len(held)]
            entry = self.twin[first]
            length = 1
            while length < len(kinds) and self.twin.get(first + length, Entry()).member == entry.member:
                length += 1
            self._acknowledge(entry.member, first, kinds[:length], whole, answer)

    def _acknowledge(self, member: str, first: int, kinds: list[int], whole: bool, answer: str) -> None:
        last = first + len(kinds) - 1
        if whole:
            kinds = kinds[:1] * len(kinds)
        types = bytes(kinds[:1] if whole else kinds)
        error, write, _ = self.real.acknowledge(self.now, member, [(first, last, types)])
        offsets = [(o, k) for o, k in zip(range(first, last + 1), kinds, strict=True) if o >= self.start]
        if last < self.start:
            assert (error, write) == (ErrorCode.NONE, None)
            return
        if last >= self.end:
            assert error == (ErrorCode.INVALID_RECORD_STATE if self.start == self.end else ErrorCode.INVALID_REQUEST)
            return
        entries = [self.twin[o] for o, _ in offsets]
        if any(e.state != State.ACQUIRED or e.member != member or e.pending for e in entries):
            assert (error, write) == (ErrorCode.INVALID_RECORD_STATE, None)
            return
        assert error == ErrorCode.NONE
        renewed = [o for o, k in offsets if k == 4]
        for offset in renewed:
            self.twin[offset].time = rounded(self.now + LOCK_MS)
        assert (write is None) == (len(renewed) == len(offsets))
        self.submit()
        if write is None:
            return
        assert self.unanswered[-1] is write
        for offset, kind in offsets:
            if kind != 4:
                self.twin[offset].pending = write.number
                self.twin[offset].member = member
        self.after = getattr(self, "after", {})
        self.after[write.number] = {o: self.twin_after(self.twin[o], k) for o, k in offsets if k != 4}
        if answer != "later" and len(self.unanswered) == 1:
            self.answer(answer == "yes")

    @precondition(lambda self: getattr(self, "unanswered", []))
    @rule(well=st.sampled_from([True, True, False]))
    def answer(self, well: bool) -> None:
        write = self.unanswered.pop(0)
        after = getattr(self, "after", {}).pop(write.number, {})
        if well or write.stands:
            self.coordinator.take(write)
            self.real.persisted(write)
            for offset, entry in after.items():
                if offset >= self.start:
                    assert self.twin[offset].pending == write.number
                    self.twin[offset] = entry
        else:
            self.real.failed(write)
            for offset in after:
                if offset >= self.start:
                    self.twin[offset].pending = 0
        self.twin_advance()
        self.submit()
        if well and not write.stands:
            assert self.coordinator.start <= self.start
        self.pass_time(0)  # a lock or a delay may have ended while this write was under way

    @rule(ms=st.sampled_from([1, 10, 100, 500, LOCK_MS, 3 * LOCK_MS]))
    def pass_time(self, ms: int) -> None:
        self.now += ms
        deadline = self.real.deadline()
        if deadline is not None and deadline <= self.now:
            self.real.expire(self.now)
        for offset, entry in self.twin.items():
            if entry.state == State.ACQUIRED and not entry.pending and entry.time <= self.now:
                self.twin[offset] = self.twin_after(entry, 2)
        self.twin_advance()
        self.submit()

    @rule(member=MEMBERS)
    def leave(self, member: str) -> None:
        self.real.release_member(self.now, member)
        for offset, entry in self.twin.items():
            if entry.state == State.ACQUIRED and entry.member == member and not entry.pending:
                self.twin[offset] = self.twin_after(entry, 2)
        self.twin_advance()
        self.submit()

    @rule(by=st.integers(1, 10))
    def move_log_start(self, by: int) -> None:
        to = self.start + by
        self.real.log_start_moved(to)
        self.twin = {offset: entry for offset, entry in self.twin.items() if offset >= to}
        self.start = self.log_start = to
        self.end = max(self.end, to)
        self.twin_advance()
        self.submit()

    @precondition(lambda self: getattr(self, "on_their_way", set()))
    @rule(pick=st.integers(0, 20))
    def letter_arrives(self, pick: int) -> None:
        offset = sorted(self.on_their_way)[pick % len(self.on_their_way)]
        self.on_their_way.discard(offset)
        self.real.dead_lettered(offset, offset + 1)
        if offset >= self.start:
            assert self.twin[offset].state == State.ARCHIVING
            self.twin[offset] = Entry(State.ARCHIVED, self.twin[offset].count)
        self.twin_advance()
        self.submit()

    @precondition(lambda self: not getattr(self, "unanswered", [1]))
    @rule()
    def restart(self) -> None:
        """Locks are gone, delays begin anew; what the coordinator took is there."""
        known, self.start = self.coordinator.known, max(self.coordinator.start, self.log_start)
        batches = [StateBatch(offset, offset, *state) for offset, state in known.items()]
        self.real = SharePartition(self.settings, self.coordinator.start, batches, self.now)
        self.real.log_start_moved(self.log_start)
        self.end = max([self.start, *(offset + 1 for offset in known)])
        self.twin = {o: Entry() for o in range(self.start, self.end)}
        for offset, (state, count) in known.items():
            if offset >= self.start:
                is_back = state == State.AVAILABLE and count
                self.twin[offset] = self.twin_back(count) if is_back else Entry(State(state), count)
        self.on_their_way.clear()
        self.twin_advance()
        self.submit()
        self.on_their_way = {o for o in self.on_their_way if o >= self.start}

    # ---- always ----------------------------------------------------------------------------------------------------

    @invariant()
    def same(self) -> None:
        if not hasattr(self, "real"):
            return
        real = self.real
        real.check()
        assert (real.start, real.end) == (self.start, self.end)
        seen = {o: s for first, end, s in real.runs.within(self.start, self.end) for o in range(first, end)}
        assert seen.keys() == self.twin.keys()
        for offset, entry in self.twin.items():
            standing = seen[offset]
            assert (standing.state, standing.delivery_count) == (entry.state, entry.count), offset
            assert standing.write == entry.pending, offset
            if entry.state == State.ACQUIRED:
                assert (standing.member, standing.time) == (entry.member, entry.time), offset
        shown = {o: run for run in in_pages(real) for o in range(run.first, run.last + 1)}
        assert {offset: (run.state, run.delivery_count) for offset, run in shown.items()} == {
            offset: (entry.state, entry.count)
            for offset, entry in self.twin.items()
            if entry.state in (State.ACQUIRED, State.ARCHIVING)
            or (entry.state == State.AVAILABLE and (entry.count or seen[offset].time))
        }


def test_a_delay_that_ended_while_its_write_was_under_way() -> None:
    partition = PartitionTwin()
    partition.begin(limit=2, locks=5, backoff=300, letters=False)
    partition.fetch(member="a", want=2, batch=2)
    partition.acknowledge_held(pick=0, kinds=[2], whole=False, answer="later")
    partition.pass_time(500)
    partition.answer(well=True)
    partition.same()
    partition.fetch(member="b", want=1, batch=1)
    assert partition.twin[START].member == "b"


TestPartitionTwin = PartitionTwin.TestCase
TestPartitionTwin.settings = settings(
    max_examples=80, stateful_step_count=40, deadline=None, report_multiple_bugs=False
)
