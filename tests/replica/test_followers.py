"""The leader's view of its followers: who is in sync, how far the high watermark goes, what is proposed."""

from collections.abc import Iterator

import pytest

from ottla.protocol.errors import ErrorCode as E
from ottla.replica.divergence import EpochEnd, truncation_offset
from ottla.replica.followers import Followers, Proposal
from ottla.replica.isr_history import KEPT, TOGETHER_MS, Cause, Distance, IsrHistory

LAG_MS = 1_000
PLACE = (bytes(16), 0)


class Nodes:
    """Everybody is registered in epoch 7, but those who are said not to be, and takes records."""

    def __init__(self) -> None:
        self.epochs: dict[int, int | None] = {}
        self.full: set[tuple[int, tuple[bytes, int]]] = set()

    def broker_epoch_of(self, node_id: int) -> int | None:
        return self.epochs.get(node_id, 7)

    def epoch_of(self, node_id: int) -> int:
        return self.epochs.get(node_id) or 7

    def may_count(self, node_id: int, place: tuple[bytes, int]) -> bool:
        return (node_id, place) not in self.full


class Led:
    """A partition that node 1 leads since offset 10, in epoch 5; its log ends at `end`."""

    def __init__(self, isr: tuple[int, ...] = (1, 2, 3), min_isr: int = 2) -> None:
        self.nodes = Nodes()
        self.history = IsrHistory()
        self.now = 100_000
        self.end = 10
        self.mark = 0
        self.followers = Followers(
            self.now,
            1,
            self.nodes,
            PLACE,
            replicas=(1, 2, 3),
            isr=isr,
            leader_epoch=5,
            partition_epoch=8,
            start_offset=10,
            lag_ms_max=LAG_MS,
            min_isr_wanted=min_isr,
            history=self.history,
        )

    def fetch(self, node_id: int, offset: int, broker_epoch: int = 7) -> bool:
        counts = self.followers.fetched(self.now, node_id, offset, 0, self.end, broker_epoch)
        self.followers.check()
        return counts

    @property
    def high_watermark(self) -> int | None:
        return self.followers.high_watermark(self.now, self.end)

    def grow(self, node_id: int) -> Proposal | None:
        return self.followers.grow(node_id, self.mark)

    def accept(self, proposal: Proposal | None, partition_epoch: int = 9) -> bool:
        assert proposal is not None
        isr = tuple(node_id for node_id, _ in proposal.isr)
        return self.followers.accepted(self.now, proposal, 5, partition_epoch, isr, self.end)


@pytest.fixture
def led() -> Iterator[Led]:
    made = Led()
    yield made
    made.followers.check()


def test_nothing_is_committed_before_everybody_in_sync_has_said_how_far_it_is(led: Led) -> None:
    led.end = 20
    assert led.high_watermark == -1
    led.fetch(2, 20)
    assert led.high_watermark == -1
    led.fetch(3, 15)
    assert led.high_watermark == 15


def test_an_earlier_life_of_a_follower_counts_for_nothing(led: Led) -> None:
    assert not led.fetch(2, 10, broker_epoch=6)
    led.nodes.epochs[3] = None
    assert not led.fetch(3, 10, broker_epoch=6), "its successor is leaving"
    assert not led.fetch(3, 10, broker_epoch=-1), "it has not registered"
    assert led.fetch(2, 10)
    led.nodes.epochs[2] = 8
    assert not led.fetch(2, 12)
    assert led.fetch(2, 10, broker_epoch=8)
    assert not led.fetch(9, 10)


def test_who_is_behind_for_too_long_is_proposed_to_leave_and_counts_until_it_has(led: Led) -> None:
    led.fetch(2, 10)
    led.fetch(3, 10)
    led.end = 20
    led.now += LAG_MS
    led.fetch(2, 20)
    assert led.followers.shrink(led.now, led.end) is None
    led.now += 1
    proposal = led.followers.shrink(led.now, led.end)
    assert proposal == Proposal(5, 8, ((1, 7), (2, 7)))
    assert led.high_watermark == 10
    assert led.followers.shrink(led.now, led.end) is None, "one at a time"
    assert led.accept(proposal)
    assert led.high_watermark == 20


def test_who_has_everything_stays_however_long_ago_it_fetched(led: Led) -> None:
    led.fetch(2, 10)
    led.fetch(3, 10)
    led.now += 10 * LAG_MS
    assert led.followers.shrink(led.now, led.end) is None


def test_who_reached_the_end_of_its_last_fetch_was_caught_up_then(led: Led) -> None:
    led.fetch(3, 10)
    led.fetch(2, 10)
    for _ in range(5):
        led.end += 5
        led.now += LAG_MS // 2
        led.fetch(2, led.end - 5)
        led.fetch(3, 10)
    proposal = led.followers.shrink(led.now, led.end)
    assert proposal is not None
    assert [node_id for node_id, _ in proposal.isr] == [1, 2]


def test_an_outsider_joins_when_it_has_the_beginning_of_the_epoch() -> None:
    led = Led(isr=(1, 2))
    led.mark = 8
    led.fetch(3, 9)
    assert led.grow(3) is None
    led.fetch(3, 10)
    proposal = led.grow(3)
    assert proposal == Proposal(5, 8, ((1, 7), (2, -1), (3, 7)))
    assert led.followers.maximal_isr == (1, 2, 3)
    led.end = 12
    led.fetch(2, 12)
    assert led.high_watermark == 10, "it may be in sync already"
    assert led.grow(3) is None
    assert led.accept(proposal)
    assert led.followers.isr == (1, 2, 3)


@pytest.mark.parametrize("epoch", [None, 8, 6])
def test_nobody_joins_who_is_fenced_or_was_another_life(epoch: int | None) -> None:
    led = Led(isr=(1, 2))
    led.fetch(3, 10)
    led.nodes.epochs[3] = epoch
    assert led.grow(3) is None


@pytest.mark.parametrize(
    ("error", "again", "pending"),
    [
        (E.INELIGIBLE_REPLICA, False, False),
        (E.OPERATION_NOT_ATTEMPTED, False, False),
        (E.FENCED_LEADER_EPOCH, False, True),
        (E.INVALID_UPDATE_VERSION, False, True),
        (E.UNKNOWN_TOPIC_ID, False, True),
        (E.INVALID_REQUEST, False, True),
        (E.NEW_LEADER_ELECTED, False, True),
        (E.NOT_CONTROLLER, True, True),
        (E.STALE_BROKER_EPOCH, True, True),
        (E.NETWORK_EXCEPTION, True, True),
    ],
)
def test_what_a_refusal_leaves(error: E, again: bool, pending: bool) -> None:
    led = Led(isr=(1, 2))
    led.fetch(3, 10)
    proposal = led.grow(3)
    assert proposal is not None
    assert led.followers.refused(proposal, error) is again
    assert (led.followers.proposal is proposal) is pending
    assert (3 in led.followers.maximal_isr) is pending


def test_newer_metadata_makes_a_proposal_void_and_its_answer_too(led: Led) -> None:
    led.end = 20
    led.fetch(2, 20)
    led.now += 2 * LAG_MS
    proposal = led.followers.shrink(led.now, led.end)
    assert proposal is not None
    assert not led.followers.metadata(led.now, (1, 2, 3), (1, 2, 3), 5, 8, led.end), "as it was"
    assert led.followers.metadata(led.now, (1, 2), (1, 2), 5, 9, led.end)
    assert not led.accept(proposal, 10)
    assert not led.followers.refused(proposal, E.NETWORK_EXCEPTION)
    assert led.followers.isr == (1, 2)
    assert list(led.followers.followers) == [2]


def test_an_answer_with_the_epoch_it_had_is_an_answer(led: Led) -> None:
    """It was so already: a lost answer's change (KAFKA-12751)."""
    led.end = 20
    led.now += 2 * LAG_MS
    proposal = led.followers.shrink(led.now, led.end)
    assert not led.accept(proposal, 7)
    assert led.accept(proposal, 8)
    assert led.followers.proposal is None


def test_the_high_watermark_stands_while_too_few_are_in_sync() -> None:
    led = Led(isr=(1,))
    led.end = 20
    assert led.high_watermark is None
    assert not led.followers.enough_to_append
    led.fetch(2, 20)
    led.grow(2)
    assert led.followers.enough_to_acknowledge
    assert not led.followers.enough_to_append
    assert led.high_watermark is None, "the committed ones count here (KAFKA-15583)"


def test_more_than_there_are_replicas_is_never_asked_for() -> None:
    assert Led(isr=(1, 2, 3), min_isr=9).followers.enough_to_append


def test_nobody_runs_away_from_who_was_caught_up_a_moment_ago() -> None:
    led = Led(isr=(1, 2))
    led.fetch(3, 10)
    led.end = 12
    led.fetch(2, 12)
    assert led.high_watermark == 10
    led.now += LAG_MS + 1
    assert led.high_watermark == 12


def test_nobody_waits_for_who_has_left_as_its_log_takes_nothing(led: Led) -> None:
    led.fetch(2, 10)
    led.fetch(3, 10)
    led.end = 30
    led.fetch(2, 30)
    led.nodes.full.add((3, PLACE))
    assert led.high_watermark == 10, "it is in sync until the cluster says otherwise"
    assert led.followers.metadata(led.now, (1, 2, 3), (1, 2), 5, 9, led.end)
    assert led.high_watermark == 30
    led.fetch(3, 30)
    assert led.grow(3) is None
    led.nodes.full.clear()
    assert led.grow(3) is not None


@pytest.mark.parametrize(
    ("leader", "own", "end", "cut"),
    [
        ((4, 30), (4, 25), 40, 25),
        ((4, 20), (4, 25), 40, 20),
        ((4, 30), (3, 15), 40, 15),
        ((4, 30), (-1, -1), 40, 30),
        ((4, 50), (-1, -1), 40, 40),
        ((4, 50), (4, 60), 40, 40),
    ],
)
def test_where_a_log_is_cut(leader: tuple[int, int], own: tuple[int, int], end: int, cut: int) -> None:
    assert truncation_offset(EpochEnd(*leader), EpochEnd(*own), end) == cut


# ---- what is remembered --------------------------------------------------------------------------------------------


def remembered(led: Led) -> list[tuple[int, Cause, Distance]]:
    return [(each.node_id, each.cause, each.distance) for each in led.history.changes()]


def test_a_replica_that_sends_no_fetch_leaves_as_silent_and_one_that_is_too_slow_as_slow(led: Led) -> None:
    led.fetch(2, 10)
    led.fetch(3, 10)
    led.end = 30
    led.now += LAG_MS + 1
    led.fetch(2, 11)
    led.accept(led.followers.shrink(led.now + 1, led.end))
    assert remembered(led) == [
        (2, Cause.SLOW, Distance(19, LAG_MS + 1, 0)),
        (3, Cause.SILENT, Distance(20, LAG_MS + 1, LAG_MS + 1)),
    ]


def test_a_replica_that_never_fetched_leaves_as_silent(led: Led) -> None:
    led.fetch(2, 10)
    led.now += LAG_MS + 1
    led.accept(led.followers.shrink(led.now, led.end))
    assert remembered(led) == [(3, Cause.SILENT, Distance(-1, LAG_MS + 1, -1))]


def test_a_replica_that_the_controller_removes_is_not_called_slow_and_its_return_is_noted(led: Led) -> None:
    led.fetch(2, 10)
    led.followers.metadata(led.now, (1, 2, 3), (1, 2), 5, 9, led.end)
    led.fetch(3, 10)
    led.accept(led.grow(3), 10)
    assert [each[:2] for each in remembered(led)] == [(3, Cause.REMOVED), (3, Cause.BACK)]


def test_a_replica_that_is_moved_away_does_not_leave(led: Led) -> None:
    led.followers.metadata(led.now, (1, 2), (1, 2), 5, 9, led.end)
    assert not remembered(led)


def test_a_refused_proposal_is_no_change_and_an_answer_and_the_metadata_are_one(led: Led) -> None:
    led.fetch(2, 10)
    led.now += LAG_MS + 1
    proposal = led.followers.shrink(led.now, led.end)
    assert proposal is not None
    led.followers.refused(proposal, E.INELIGIBLE_REPLICA)
    assert not remembered(led)
    led.accept(led.followers.shrink(led.now, led.end))
    led.followers.metadata(led.now, (1, 2, 3), (1, 2), 5, 9, led.end)
    assert len(remembered(led)) == 1


def test_a_new_leader_notes_the_replicas_that_the_election_removed() -> None:
    history = IsrHistory()
    Followers(
        5, 1, Nodes(), PLACE, replicas=(1, 2, 3), isr=(1, 3), leader_epoch=5, partition_epoch=8, start_offset=10,
        lag_ms_max=LAG_MS, min_isr_wanted=2, history=history, isr_before=(1, 2, 3),
    )  # fmt: skip
    assert [(each.node_id, each.cause, each.distance) for each in history.changes()] == [(2, Cause.REMOVED, Distance())]


def test_a_node_that_leaves_many_partitions_is_one_change_with_its_worst_partition() -> None:
    history = IsrHistory()
    for index in range(5_000):
        history.note(index // 10, (b"t", index), 3, Cause.SLOW, Distance(index % 77, 1, 1))
    history.note(501, (b"t", 0), 2, Cause.SLOW, Distance(1, 1, 1))
    history.note(502, (b"t", 0), 3, Cause.BACK)
    history.note(TOGETHER_MS + 1, (b"t", 9), 3, Cause.SLOW, Distance(1, 1, 1))
    rows = [(each.node_id, each.cause, each.partitions, each.distance.records) for each in history.changes()]
    assert rows == [
        (3, Cause.SLOW, 5_000, 76),
        (2, Cause.SLOW, 1, 1),
        (3, Cause.BACK, 1, -1),
        (3, Cause.SLOW, 1, 1),
    ]
    for number in range(2 * KEPT):
        history.note(number * 10_000, (b"t", 0), 2, Cause.BACK)
    assert len(history) == KEPT
