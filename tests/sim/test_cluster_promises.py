"""Which test tells each story that has gone wrong in systems like this one, and which check holds each invariant.

The numbers are those that the checkers raise, and that stories name; the others are Kafka's issues.
"""

import ast
from pathlib import Path

import pytest

from tests.harness.sources import FORM, tree_of

pytestmark = FORM

TOP = Path(__file__).resolve().parent.parent.parent
BY_HAND, ELECTED = "tests/sim/test_cluster_scenarios.py", "tests/sim/test_cluster_scenarios_elected.py"
MOVING, TRANSACTIONS = "tests/sim/test_moving.py", "tests/sim/test_cluster_transactions.py"
ZOOKEEPER, CONTROLLERS = "tests/metadata/test_zookeeper.py", "tests/sim/test_controllers.py"
REPLICAS, STORE = "src/ottla/sim/workloads/replica_checkers.py", "src/ottla/sim/workloads/watched_store.py"
CLUSTERED, MARKERS = "src/ottla/sim/workloads/clustered_run.py", "src/ottla/sim/workloads/transaction_checkers.py"

STORIES = {
    "1 a restarted follower leads": [(BY_HAND, "test_a_restarted_follower_that_leads_has_what_was_acknowledged")],
    "2 unlike data at equal offsets": [(BY_HAND, "test_unlike_records_at_one_offset_become_one")],
    "3 quick elections without appends": [(BY_HAND, "test_leaders_that_append_nothing_leave_epochs_that_nobody_knows")],
    "4 an epoch of the same leader is missed": [(BY_HAND, "test_a_follower_misses_an_epoch_between_two_of_one_leader")],
    "5 an outsider joins before the epoch's start": [
        (BY_HAND, "test_an_outsider_joins_only_behind_the_beginning_of_the_epoch")
    ],
    "6 a fetch that diverges is no progress": [
        ("tests/broker/test_leading.py", "test_a_fetch_that_diverges_is_no_progress"),
        ("tests/replica/test_fetcher.py", "test_an_empty_answer_keeps_the_epoch"),
        ("tests/replica/test_fetcher.py", "test_a_log_that_diverges_is_busy_until_it_is_cut"),
    ],
    "7 the high watermark at a restart": [
        (BY_HAND, "test_the_high_watermark_is_there_after_a_restart"),
        ("tests/log/test_recovery.py", "test_high_watermark_and_log_start_are_clamped"),
    ],
    "8 an append fails half-way": [
        (ELECTED, "test_a_leader_whose_disk_is_full_is_followed_by_another"),
        ("tests/broker/test_storage.py", "test_a_full_disk_passes"),
    ],
    "9 an isolated leader": [(BY_HAND, "test_an_isolated_leader_acknowledges_nothing_to_acks_all")],
    "10 a shrink that is refused": [(BY_HAND, "test_a_shrink_that_is_not_committed_moves_nothing")],
    "11 a late answer of the controller": [
        (BY_HAND, "test_an_answer_of_the_controller_comes_after_another_election"),
        ("tests/replica/test_followers.py", "test_an_answer_with_the_epoch_it_had_is_an_answer"),
    ],
    "12 who may not joins": [
        (BY_HAND, "test_nobody_joins_who_is_given_up"),
        (ELECTED, "test_a_replica_joins_by_what_its_present_life_has"),
        ("tests/broker/test_elections.py", "test_only_active_nodes_join"),
    ],
    "13 a bounce with a lost tail": [(BY_HAND, "test_a_bounce_that_lost_its_end_before_anybody_noticed")],
    "14 the last replica loses its tail": [
        (ELECTED, "test_the_last_in_sync_replica_loses_its_end_and_an_eligible_one_leads"),
        (
            "tests/broker/test_elections.py",
            "test_a_node_that_lost_bytes_and_is_given_up_before_it_was_active_may_not_lead",
        ),
    ],
    "15 a controller pauses, an answer is lost": [
        (ELECTED, "test_a_controller_that_stood_still_writes_nothing_behind_its_successor"),
        (ELECTED, "test_what_a_controller_sent_before_its_successor_came_is_not_written_behind_it"),
        (ELECTED, "test_a_commit_whose_answer_is_lost_counts_once"),
    ],
    "16 a ticket outlives its leadership": [(BY_HAND, "test_no_ticket_outlives_its_leadership")],
    "17 too few in sync behind an append": [
        (BY_HAND, "test_what_was_appended_before_too_few_were_in_sync_is_not_acknowledged"),
        (BY_HAND, "test_too_few_copies_of_what_was_appended_are_said"),
    ],
    "18 nodes die while replicas move": [
        (MOVING, "test_the_leader_dies_while_its_replicas_move"),
        (MOVING, "test_a_target_dies_and_the_move_waits_for_it"),
        (MOVING, "test_a_move_is_cancelled_when_some_have_arrived"),
    ],
    "19 below the log start": [
        (BY_HAND, "test_a_follower_ends_below_the_leaders_start"),
        ("tests/log/test_replication.py", "test_an_empty_follower_restarts_at_a_batch_that_straddles_its_end"),
    ],
    "20 a topic is made anew": [(ELECTED, "test_a_topic_that_was_made_anew_has_nothing_of_the_old_one")],
    "21 a wrong epoch file": [
        ("tests/log/test_recovery.py", "test_a_torn_epoch_checkpoint_is_read_from_the_batches"),
        ("tests/log/test_recovery.py", "test_a_stale_epoch_checkpoint_is_completed_and_cut"),
    ],
    "22 a coordinator moves": [
        (ELECTED, "test_a_coordinator_moves_while_it_loads_and_comes_back"),
        (TRANSACTIONS, "test_a_coordinator_that_was_replaced_ends_nothing"),
    ],
    "23 an unclean election cuts a marker": [
        (TRANSACTIONS, "test_a_marker_that_an_unclean_election_cuts_is_found_and_written_again")
    ],
    "24 a stop before all know the new leader": [
        (ELECTED, "test_a_leader_stops_when_everybody_knows_who_leads_instead")
    ],
    "25 a reader above a follower's high watermark": [
        ("tests/sim/test_nearby_readers.py", "test_readers_at_any_replica_see_what_is_committed"),
        ("tests/broker/test_admin_offsets.py", "test_latest_waits_for_the_high_watermark_of_its_epoch"),
    ],
    "26 clocks leap, processes stand still": [
        (ELECTED, "test_who_stands_still_beyond_its_lease_answers_nothing_old"),
        (ELECTED, "test_clocks_that_leap_move_nothing"),
    ],
    "27 the store": [
        (ZOOKEEPER, "test_an_expired_session_is_followed_by_another"),
        (ZOOKEEPER, "test_a_watch_that_was_lost_with_the_connection_is_not_trusted"),
        (ZOOKEEPER, "test_a_commit_whose_answer_is_lost_was_done_and_its_mark_says_so"),
        (
            "tests/metadata/test_damage.py",
            "test_a_writer_that_stops_in_the_middle_of_its_commit_holds_others_up_until_it_is_gone",
        ),
    ],
    "28 a batch that should not be taken": [
        (BY_HAND, "test_a_batch_that_arrives_otherwise_than_it_was_sent_is_not_taken")
    ],
}
INVARIANTS = {
    "1 one leader per epoch": [(REPLICAS, "_look_at_leader"), (STORE, "_check_change")],
    "2 log matching": [(REPLICAS, "_match")],
    "3 leader completeness": [(REPLICAS, "_look_at_new_leader")],
    "4 what is in sync is durable": [(REPLICAS, "_look_at_members")],
    "5 the high watermark": [(REPLICAS, "_look_at_offsets")],
    "6 nothing committed is cut": [(REPLICAS, "_look_at_cut")],
    "7 the in-sync replicas": [(STORE, "_check_change")],
    "8 what is stale changes nothing": [(CONTROLLERS, "test_finds_a_proposal_that_is_taken_too_late")],
    "9 controllers follow each other": [(STORE, "_check_topic")],
    "10 what is acknowledged is committed": [(REPLICAS, "_told")],
    "11 a number stands once": [(REPLICAS, "_count"), ("src/ottla/sim/workloads/checkers.py", "_audit_producers")],
    "12 committed offsets never go back": [("src/ottla/sim/clients/history.py", "fetch_commit")],
    "13 transactions": [(MARKERS, "_audit_markers"), (MARKERS, "_audit_whole")],
    "14 a coordinator's memory is its log": [(CLUSTERED, "_compare_with_replay")],
    "15 everything comes to rest": [
        ("src/ottla/sim/workloads/cluster.py", "settle"),
        ("src/ottla/sim/workloads/checkers.py", "Deadlines"),
    ],
}


@pytest.mark.parametrize(("promises", "count"), [(STORIES, 28), (INVARIANTS, 15)], ids=["stories", "invariants"])
def test_each_has_its_test_or_check(promises: dict[str, list[tuple[str, str]]], count: int) -> None:
    assert [int(name.split()[0]) for name in promises] == list(range(1, count + 1))
    gone = [held for holds in promises.values() for held in holds if held[1] not in names_in(held[0])]
    assert not gone


def names_in(path: str) -> set[str]:
    """Every function and class of a file."""
    return {each.name for each in ast.walk(tree_of(TOP / path)) if isinstance(each, ast.FunctionDef | ast.ClassDef)}
