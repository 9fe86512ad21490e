"""Bugs that replication might have, planted: the cluster workload has to find each of them."""

from dataclasses import replace
from typing import Any

import pytest

from ottla.broker.cluster import isr_changes
from ottla.broker.cluster.controller import Controller
from ottla.broker.cluster.elections import NodeStates
from ottla.broker.cluster.leaving import Leaving
from ottla.broker.cluster.members import Members
from ottla.broker.cluster.membership import Membership
from ottla.broker.partitions.partition import Partition
from ottla.broker.replication.fetching import FetchesOf, Fetching
from ottla.broker.replication.waits import FetchWaits
from ottla.broker.topics.placement import Placement
from ottla.log.log import Log
from ottla.metadata.nodes import NodeRecord, NodeState, TopicIdPartition
from ottla.replica.fetcher import Fetcher, Position
from ottla.replica.followers import Followers
from ottla.sim.kernel.trace import InvariantError
from ottla.sim.workloads.cluster_run import ClusterRun
from tests.sim import test_cluster_scenarios as by_hand
from tests.sim import test_cluster_scenarios_elected as elected

SEEDS_MAX = 40


def restarted_at_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """A follower cuts its log to its high watermark before it fetches, as before KIP-101."""
    follow = Fetching.follow

    def wrong(self: Fetching, now: int, partition: Partition, leader: int) -> None:
        partition.log.truncate_to(partition.log.high_watermark, now=now)
        follow(self, now, partition, leader)

    patch.setattr(Fetching, "follow", wrong)


def moved_before_the_joiner_has_it(patch: pytest.MonkeyPatch) -> None:
    """The high watermark goes by the committed in-sync replicas, while one is about to join."""

    def wrong(self: Followers, now: int, end_offset: int) -> int | None:
        known = [each.end_offset for node_id, each in self.followers.items() if node_id in self.isr]
        return min([end_offset, *known]) if len(self.isr) >= self.min_isr else None

    patch.setattr(Followers, "high_watermark", wrong)


def shrunk_as_if_accepted(patch: pytest.MonkeyPatch) -> None:
    """Who shall leave the in-sync replicas is not waited for, although the controller has not said so."""
    shrink = Followers.shrink

    def wrong(self: Followers, now: int, end_offset: int) -> Any:
        proposal = shrink(self, now, end_offset)
        if proposal is not None:
            self.isr = tuple(node_id for node_id, _ in proposal.isr)
        return proposal

    patch.setattr(Followers, "shrink", wrong)


def moved_when_appended(patch: pytest.MonkeyPatch) -> None:
    """The leader takes for committed what it has itself."""
    patch.setattr(Followers, "high_watermark", lambda self, now, end_offset: end_offset)


def epoch_not_sent(patch: pytest.MonkeyPatch) -> None:
    """Nobody asks where the logs part ways."""
    follow = Fetcher.follow

    def wrong(self: Fetcher, key: Any, leader_epoch: int, position: Position) -> None:
        follow(self, key, leader_epoch, position._replace(last_epoch=-1))

    patch.setattr(Fetcher, "follow", wrong)
    at = Fetcher.at
    patch.setattr(
        Fetcher, "at", lambda self, key, epoch, position: at(self, key, epoch, position._replace(last_epoch=-1))
    )


def leads_in_an_old_epoch(patch: pytest.MonkeyPatch) -> None:
    """A node that comes back goes on to lead what it led."""
    begin_ = Placement._begin

    def wrong(self: Placement, now: int, partition: Partition, placed: Any) -> None:
        partition.leads = placed.leader == self._environment.node_id
        begin_(self, now, partition, placed)

    patch.setattr(Placement, "_begin", wrong)


def end_offsets_kept(patch: pytest.MonkeyPatch) -> None:
    """A new leader takes everybody to have what it has."""
    made = Followers.__init__

    def wrong(self: Followers, *args: Any, **given: Any) -> None:
        made(self, *args, **given)
        for follower in self.followers.values():
            follower.end_offset = given["start_offset"]

    patch.setattr(Followers, "__init__", wrong)


def joins_below_the_beginning_of_the_epoch(patch: pytest.MonkeyPatch) -> None:
    """Who has all below the new leader's high watermark joins, although more was committed before (KAFKA-7128)."""
    grow = Followers.grow

    def wrong(self: Followers, node_id: int, high_watermark: int) -> Any:
        start, self.start_offset = self.start_offset, 0
        proposal = grow(self, node_id, high_watermark)
        self.start_offset = start
        return proposal

    patch.setattr(Followers, "grow", wrong)


def epoch_begins_with_an_append(patch: pytest.MonkeyPatch) -> None:
    """A leader that appends nothing leaves no epoch behind (KAFKA-7415)."""
    patch.setattr(Log, "assign_epoch", lambda self, epoch: None)


def joins_as_an_earlier_life(patch: pytest.MonkeyPatch) -> None:
    """What the last life of a replica had lets the next one join (KIP-903)."""

    def wrong(record: NodeRecord | None, broker_epoch: int) -> bool:
        return record is not None and record.state is NodeState.ACTIVE

    patch.setattr(isr_changes, "_is_eligible", wrong)
    patch.setattr(
        Followers,
        "_is_eligible",
        lambda self, node_id, follower: self.registrations.broker_epoch_of(node_id) is not None,
    )
    patch.setattr(Followers, "counts_on_more", lambda *_: False)
    patch.setattr(NodeRecord, "may_count", lambda *_: True)


def fences_itself_never(patch: pytest.MonkeyPatch) -> None:
    """A node whose lease has run out answers as if nothing were."""
    patch.setattr(Membership, "is_fresh", lambda self, now: True)


def leads_what_it_has_given_up(patch: pytest.MonkeyPatch) -> None:
    """A node that has said that a log takes nothing answers as its leader until it hears who leads instead."""
    patch.setattr(Membership, "_look_at_given_up", lambda self: None)


def gives_up_only_what_others_lead_that_are_there(patch: pytest.MonkeyPatch) -> None:
    """A node that has said that a log takes nothing answers as its leader while all who may lead seem down."""
    moves_away = Controller.moves_away

    def moved(self: Controller, place: TopicIdPartition, nodes: NodeStates, **given: bool) -> bool:
        return moves_away(self, place, replace(nodes, active=nodes.active & {*(self.present or {})}), **given)

    patch.setattr(Controller, "moves_away", moved)


def writes_without_its_claim(patch: pytest.MonkeyPatch) -> None:
    """A controller that others have taken for dead goes on (KAFKA-6082)."""
    patch.setattr(Members, "guards", lambda self, rows=(): [])


def elects_who_says_to_leave(patch: pytest.MonkeyPatch) -> None:
    """What the controller sent before a node said to leave has that node lead."""
    patch.setattr(Members, "_new_leaders", lambda self, row: set())


def stops_before_the_others_have_heard(patch: pytest.MonkeyPatch) -> None:
    """A node stops as soon as it knows itself that others lead what it led."""
    patch.setattr(Leaving, "_unaware", lambda self, generation: [])


def takes_batches_of_a_later_epoch(patch: pytest.MonkeyPatch) -> None:
    """A follower takes what its leader sends, of whatever epoch it is (KAFKA-18723)."""
    append = Log.append_as_follower
    patch.setattr(Log, "append_as_follower", lambda self, records, *, now, leader_epoch: append(self, records, now=now))


def leads_something_new_and_wakes_nobody(patch: pytest.MonkeyPatch) -> None:
    """Followers' fetches that wait are answered when their time is up, whatever their leader leads by then."""

    def wrong(self: FetchWaits, now: int) -> None:
        self._began_at = now

    patch.setattr(FetchWaits, "begins_to_lead", wrong)


def fetches_wait_as_ever_after_they_were_woken(patch: pytest.MonkeyPatch) -> None:
    """A follower that has not heard of its new leader when that wakes it fetches the new partition late."""

    def wrong(self: FetchWaits, now: int, node_id: int, ticket: int, deadline: int) -> None:
        self._tickets[node_id] = ticket

    patch.setattr(FetchWaits, "waits", wrong)


def a_fetcher_is_used_and_not_asked_when_it_is_due(patch: pytest.MonkeyPatch) -> None:
    """The host of a pure machine keeps the deadline that it had."""
    patch.setattr(FetchesOf, "fetcher", property(lambda self: self._fetcher))


def all_but_the_last_are_lost(seed: int) -> None:
    by_hand.test_all_but_the_last_are_lost_one_after_the_other_and_nothing_acknowledged_is(seed)


def batches_of_a_later_epoch_come(seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        by_hand.test_a_batch_that_arrives_otherwise_than_it_was_sent_is_not_taken(seed, by_hand.EPOCH_AT, patch)


BUGS = {
    restarted_at_the_high_watermark: 0,
    moved_when_appended: 0,
    leads_in_an_old_epoch: 4,
    end_offsets_kept: 7,
    a_fetcher_is_used_and_not_asked_when_it_is_due: 4,
}
"""Each with a seed that finds it soon; should the simulator have changed so much that it no longer does, others may."""


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(bug: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    for seed in (BUGS[bug], *range(SEEDS_MAX)):
        failure = ClusterRun(seed).outcome().failure
        if failure is not None:
            print(f"{bug.__name__}: seed {seed}: {failure.splitlines()[-1]}")
            return
    pytest.fail(f"not found by {SEEDS_MAX} seeds")


STORIES: dict[Any, Any] = {
    moved_before_the_joiner_has_it: all_but_the_last_are_lost,
    epoch_begins_with_an_append: by_hand.test_an_outsider_joins_only_behind_the_beginning_of_the_epoch,
    shrunk_as_if_accepted: by_hand.test_a_shrink_that_is_not_committed_moves_nothing,
    epoch_not_sent: by_hand.test_a_follower_misses_an_epoch_between_two_of_one_leader,
    joins_below_the_beginning_of_the_epoch: by_hand.test_an_outsider_joins_only_behind_the_beginning_of_the_epoch,
    joins_as_an_earlier_life: elected.test_a_replica_joins_by_what_its_present_life_has,
    fences_itself_never: elected.test_a_leader_that_does_not_reach_the_store_answers_no_reader,
    leads_what_it_has_given_up: elected.test_a_leader_whose_disk_is_full_answers_no_reader_before_it_knows_who_leads,
    gives_up_only_what_others_lead_that_are_there: (
        elected.test_a_leader_whose_disk_is_full_answers_no_reader_where_who_may_lead_is_down
    ),
    elects_who_says_to_leave: elected.test_a_node_that_leaves_while_it_is_being_elected_is_not,
    stops_before_the_others_have_heard: elected.test_a_leader_stops_when_everybody_knows_who_leads_instead,
    takes_batches_of_a_later_epoch: batches_of_a_later_epoch_come,
    leads_something_new_and_wakes_nobody: elected.test_a_leader_that_stops_cleanly_is_missed_for_a_moment_only,
    fetches_wait_as_ever_after_they_were_woken: elected.test_a_leader_that_stops_cleanly_is_missed_for_a_moment_only,
    writes_without_its_claim: elected.test_what_a_controller_sent_before_its_successor_came_is_not_written_behind_it,
}
"""Bugs that need more luck than a run has, each with the story that meets it."""
STORY_SEEDS = {
    leads_what_it_has_given_up: 1,
    leads_something_new_and_wakes_nobody: 4,
    joins_as_an_earlier_life: 1,
    fetches_wait_as_ever_after_they_were_woken: 1,
}
"""The seeds of stories in which a bug does not show at seed 0."""


@pytest.mark.parametrize("bug", STORIES, ids=lambda bug: bug.__name__)
def test_a_story_finds_a_planted_bug(bug: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    with pytest.raises((InvariantError, AssertionError)):
        STORIES[bug](STORY_SEEDS.get(bug, 0))
