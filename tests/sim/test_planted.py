"""The checkers can fail: each test breaks the node or its disk in one place, and some seed must notice.

Each names a seed that notices soon; where the simulator has changed so much that it no longer does, others are tried.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest

from ottla.broker.api import k00_produce
from ottla.broker.api.fetch_reading import Fetch
from ottla.broker.cluster.metadata import Metadata
from ottla.broker.coordinators.shards import ShardHost
from ottla.broker.effects import Parked, Reading
from ottla.broker.fetch.sessions import FetchSessions
from ottla.broker.partitions.partition import Partition
from ottla.broker.schedule import AT_ONCE, Schedule
from ottla.groups.classic.group import Group
from ottla.log import failed_sync, retention
from ottla.log.answers import Appended, ReadResult
from ottla.log.compaction import compaction
from ottla.log.log import Log
from ottla.log.producers import ProducerState
from ottla.sim.clients.consumers import SESSION_TIMEOUT_MS
from ottla.sim.kernel.clock import MS
from ottla.sim.workloads.faults import Faults
from ottla.sim.workloads.run import Run
from ottla.sim.workloads.workload import FSYNC, PAGE_CACHE, Plan
from tests.sim.test_groups_planted import plant_commits_that_are_not_kept

SEEDS_MAX = 120


def failures(seed: int = 0, wanted: Callable[[Plan], bool] = lambda plan: True, *, lies: bool = False) -> Iterator[str]:
    """What goes wrong, in one seed and then seed after seed, in runs whose plan is wanted."""
    for each in (seed, *range(SEEDS_MAX)):
        run = Run(each, lies=lies)
        if wanted(run.plan):
            failure = run.outcome().failure
            if failure is not None:
                yield failure.strip().splitlines()[-1]


def assert_found(*words: str, **asked: Any) -> None:
    """One of the first runs fails, and for the reason that was planted."""
    found: list[str] = []
    for failure in islice(failures(**asked), 3):
        found.append(failure)
        if any(word in failure for word in words):
            return
    raise AssertionError(found or "nobody noticed")


def test_a_disk_that_lies_about_syncing() -> None:
    assert_found("lost", "nothing at", "acknowledges", "stood", "answers 45", wanted=is_durable, lies=True)


def is_durable(plan: Plan) -> bool:
    return plan.durability == FSYNC


def is_page_cache(plan: Plan) -> bool:
    return plan.durability == PAGE_CACHE and not plan.may_lose


def test_an_acknowledgement_before_the_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Partition.append

    def hasty(self: Partition, *args: Any, **named: Any) -> Appended:
        appended = original(self, *args, **named)
        self.log.advance_high_watermark(self.log.log_end_offset)
        return appended

    monkeypatch.setattr(Partition, "append", hasty)
    assert_found("lost", "nothing at", "acknowledges", "stood", "answers 45", seed=1, wanted=is_durable)


def test_a_coordinator_whose_host_does_not_ask_when_it_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ShardHost, "_set_timer", lambda self, hosted: None)
    assert_found("has no timer", seed=2)


def test_an_acknowledgement_before_the_append(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Partition.append
    count = 0

    def forgetful(self: Partition, *args: Any, **named: Any) -> Appended:
        nonlocal count
        count += 1
        if count % 50 == 0 and self.topic_name == "orders":
            end = self.log.log_end_offset
            return Appended(end, end, -1, False)
        return original(self, *args, **named)

    monkeypatch.setattr(Partition, "append", forgetful)
    assert_found("acknowledges", "stood")


def test_a_produce_in_slices_that_the_next_one_overtakes(monkeypatch: pytest.MonkeyPatch) -> None:
    original = k00_produce.SlicedProduce.begin

    def overtaken(self: k00_produce.SlicedProduce, *args: Any) -> Parked:
        return original(self, *args)._replace(goes_on=False)

    monkeypatch.setattr(k00_produce, "SLICE_STEPS", 1)
    monkeypatch.setattr(k00_produce.SlicedProduce, "begin", overtaken)
    assert_found("answers 45")


def test_a_broker_that_forgets_its_producers(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Log.append_as_leader
    count = 0

    def forgetful(self: Log, *args: Any, **named: Any) -> Appended:
        nonlocal count
        count += 1
        if count % 20 == 0:
            self.producers.entries.clear()
        return original(self, *args, **named)

    monkeypatch.setattr(Log, "append_as_leader", forgetful)
    assert_found("is there twice", "comes after", "answers 45", "after the restart", seed=41, wanted=is_page_cache)


def test_snapshots_with_only_the_last_batch_of_each_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    original = ProducerState.restore

    def poor(self: ProducerState, *args: Any) -> None:
        original(self, *args)
        for entry in self.entries.values():
            while len(entry.batches) > 1:
                entry.batches.popleft()

    monkeypatch.setattr(ProducerState, "restore", poor)
    assert_found("answers 45", seed=17)


def test_readers_shown_what_is_not_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Log.read

    def eager(self: Log, offset: int, max_bytes: int, isolation: int, *args: Any) -> ReadResult:
        return original(self, offset, max_bytes, 0, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Log, "read", eager)
    assert_found("beyond", wanted=is_durable)


def test_retention_that_takes_what_it_must_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_breaching_time", lambda log, now: min(1, len(log.segments) - 1))
    assert_found("has nothing at", "starts at", "gives", "lost", seed=1)


def test_compaction_that_drops_the_newest_value(monkeypatch: pytest.MonkeyPatch) -> None:
    original = compaction.key_offsets

    def reckless(*args: Any) -> list[tuple[bytes, int]]:
        return [(key, offset + 1) for key, offset in original(*args)]

    monkeypatch.setattr(compaction, "key_offsets", reckless)
    assert_found(
        "was last acknowledged", "its committed offset", "after the restart", "never committed", "belongs to", seed=3
    )


def test_everybody_gets_the_leaders_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Group.image

    def generous(self: Group, assignments: dict[str, bytes]) -> Any:
        longest = max(assignments.values(), key=len, default=b"")
        return original(self, {member_id: longest for member_id in self.members})

    monkeypatch.setattr(Group, "image", generous)
    assert_found("belongs to", "own")


def test_commits_that_are_acknowledged_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    plant_commits_that_are_not_kept(monkeypatch)
    assert_found("lost its committed offset", "long superseded", "after the restart")


def members_stand_still(self: Faults) -> None:
    """The only trouble of such a run: again and again some member sleeps through its session, and then goes on."""
    if not self.active:
        return
    awake = [member for member in self.clients._workload.members if not member.paused]
    if awake:
        member = self.rng.choice(awake)
        member.pause()
        self.world.agenda.after(3 * SESSION_TIMEOUT_MS * MS, member.resume)
    self.world.agenda.after(self.rng.randrange(2 * SESSION_TIMEOUT_MS * MS), self._next)


def test_members_that_stand_still_are_fenced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Faults, "_next", members_stand_still)
    assert Run(0).outcome().failure is None


def test_fenced_members_that_may_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    import ottla.groups.offsets as offsets
    from ottla.protocol.errors import ErrorCode

    original = offsets._commit_error

    def lenient(*args: Any) -> ErrorCode:
        error = original(*args)
        fenced = (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID)
        return ErrorCode.NONE if error in fenced else error

    monkeypatch.setattr(offsets, "_commit_error", lenient)
    monkeypatch.setattr(Faults, "_next", members_stand_still)
    assert_found("commits in generation", "superseded", seed=16)


def test_a_node_that_never_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Schedule, "deadline", lambda self: AT_ONCE)
    assert_found("spins")


def test_an_fsync_that_is_trusted_after_one_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgiving(log: Log, now: int, *, others_know: bool) -> bool:
        log.durability.repaired()
        return True

    monkeypatch.setattr(failed_sync, "reopen", forgiving)
    assert_found(
        "lost", "nothing at", "acknowledges", "stood", "more was read", "answers 45", seed=39, wanted=is_durable
    )


# ---- commits of the metadata ---------------------------------------------------------------------------------------


def test_a_success_that_nobody_knows_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit whose outcome is unknown is taken for done."""
    original = Metadata.reread

    def hopeful(self: Metadata, now: int, token: int, answer: Any) -> None:
        if isinstance(answer, Reading) and self._turn is not None:
            answer = answer._replace(value=self._turn.mark)
        original(self, now, token, answer)

    monkeypatch.setattr(Metadata, "reread", hopeful)
    assert_found("is there 0 times", "was told that its number", "handed out twice", seed=40)


@pytest.mark.slow("tests/sim/test_planted.py::test_commits_that_are_acknowledged_and_not_kept")
def test_a_commit_that_is_done_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit whose outcome is unknown is taken for not done: who made a topic hears that it was there already."""
    original = Metadata.reread

    def doubting(self: Metadata, now: int, token: int, answer: Any) -> None:
        original(self, now, token, answer._replace(value=None) if isinstance(answer, Reading) else answer)

    monkeypatch.setattr(Metadata, "reread", doubting)
    assert_found("is there 1 times", "is there 0 times", seed=17)


def test_fetch_sessions_that_outlive_their_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FetchSessions, "connection_lost", lambda self, connection: None)
    assert_found("fetch sessions of connections", seed=4)


def test_answers_that_are_larger_than_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Fetch.__init__

    def generous(self: Fetch, *args: Any, **named: Any) -> None:
        original(self, *args, **named)
        self.max_bytes = 1 << 30

    monkeypatch.setattr(Fetch, "__init__", generous)
    assert_found("bytes and gets")
