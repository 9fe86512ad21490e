"""What docs/durability.md, docs/cluster.md and docs/operations.md promise about failures, and the tests that show it.

Each row of a table is named by its first cell, and each promise in the prose by a few of its words. A row without a
proof, a proof that does not exist and a promise that the page no longer makes each fail a test here.
"""

import ast
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from tests.harness.sources import FORM, text_of, tree_of

pytestmark = FORM

TOP = Path(__file__).resolve().parents[2]
DURABILITY, CLUSTER, OPERATIONS = "docs/durability.md", "docs/cluster.md", "docs/operations.md"
PROVEN_CELL_BY_CELL = ("1", "all")
"""First cells of the rows that tests/sim/test_durability.py reads from the page."""

TAILS = "sim/test_lost_tails.py"
LYING, STATES, ADOPTED = "sim/test_lying_disks.py", "sim/test_disk_states.py", "sim/test_adopted_topics.py"
ELECTED, BY_HAND = "sim/test_cluster_scenarios_elected.py", "sim/test_cluster_scenarios.py"
KEPT = "sim/test_durability.py::test_a_record_is_kept_where_the_page_says_so"
DISK_LIES = f"{LYING}::test_a_node_whose_disk_lies_starts_first_and_leads_nothing"
BENEATH = f"{LYING}::test_files_that_are_spoiled_beneath_a_node_are_copied_again"
STORAGE, SCRUBS, DIRECTORIES = "broker/test_storage.py", "broker/test_scrubs.py", "broker/test_directories.py"
FOUND, FOUND_LOGS, LOST_LOGS = "log/test_found.py", "broker/test_found_logs.py", "broker/test_lost_logs.py"
REMOVED, ELECTIONS, WATCHDOG = (
    "broker/test_removed_directories.py",
    "broker/test_elections.py",
    "server/test_watchdog.py",
)
LOCKS, STORE, ZOOKEEPER = "server/test_directory.py", "metadata/test_damage.py", "server/test_zookeeper_cluster.py"
UPGRADE, RECOVERY, NODES = "crash/test_upgrade_cluster.py", "log/test_recovery.py", "cli/test_nodes.py"
UNDER, GAPS, UNREADABLE = "log/test_beneath.py", "log/test_gaps.py", "sim/test_unreadable_places.py"

ROWS: dict[str, dict[str, list[str]]] = {
    DURABILITY: {
        "an answer with acks=1 or all leaves": [
            f"{STORAGE}::test_with_page_cache_durability_nothing_waits_for_the_disk",
            "sim/test_planted.py::test_an_acknowledgement_before_the_fsync",
        ],
        "the process is killed": [KEPT, "crash/test_crash.py::test_kill_9_under_load"],
        "the machine loses power": [KEPT],
        "cost": [f"{STORAGE}::test_one_fsync_runs_at_a_time_and_all_that_wait_share_the_next"],
        "the end of a log is damaged or cut": [
            DISK_LIES,
            f"{FOUND}::test_a_log_that_ends_below_its_checkpoints_is_short",
        ],
        "a segment, a partition's directory or the whole data directory is missing": [
            DISK_LIES,
            KEPT,
            f"{FOUND}::test_a_missing_segment_in_the_middle_is_found",
            f"{FOUND}::test_a_missing_head_is_found_unless_the_log_start_explains_it",
            f"{LOST_LOGS}::test_a_log_that_is_lost_before_its_first_checkpoint_is_missed",
            "server/test_new_disk.py::test_a_node_with_an_empty_disk_leads_nothing_that_others_have_some_of",
        ],
        "a `.txnindex` is damaged, cut or missing when a node starts": [
            "log/test_transaction_indexes.py::test_a_damaged_index_is_rebuilt",
        ],
        "an older copy of the whole directory, made while the node was down": [DISK_LIES],
        "an older copy put over the directory (`cp -r backup/* data/`)": [
            DISK_LIES,
            "log/test_incarnations.py::test_a_copy_put_over_the_directory_is_noticed",
        ],
        "the newest batches are lost, or an older copy replaces the newest segment, after a kill": [
            f"{TAILS}::test_of_killed_replicas_the_one_with_the_longest_log_leads",
            f"{TAILS}::test_a_killed_replica_leads_nothing_before_it_has_caught_up",
            "server/test_lying_disks.py::test_a_killed_leader_that_has_lost_its_newest_batches_starts_first",
        ],
        "the volume goes back to a snapshot that was made while the node ran": [
            f"{TAILS}::test_a_volume_that_goes_back_to_a_snapshot_does_not_lead"
        ],
        "a flipped bit in the middle of a log": [
            BENEATH,
            f"{SCRUBS}::test_a_damaged_segment_is_found_in_a_pass",
            f"{SCRUBS}::test_a_damaged_batch_that_a_new_replica_asks_for_is_said_on_both_nodes",
            f"{LYING}::test_a_coordinator_with_a_damaged_log_gives_way_and_copies_it_again",
        ],
        "a flipped bit in `leader-epoch-checkpoint`, `partition.metadata`, `gaps-below`, `meta.properties`, "
        "`.metadata-seen` or a checkpoint": [
            f"{GAPS}::test_without_the_file_gaps_count_from_the_present_end_on",
            f"{GAPS}::test_a_scrub_writes_the_file_again",
            f"{FOUND}::test_a_flipped_bit_in_the_epoch_checkpoint_changes_no_epoch",
            f"{FOUND_LOGS}::test_flipped_bits_in_the_name_of_a_topics_id_are_mended",
            f"{DIRECTORIES}::test_properties_that_a_disk_has_damaged_are_written_again",
            "broker/test_store_memory.py::test_a_flipped_bit_does_not_look_like_another_store",
            f"{UNDER}::test_a_small_file_is_written_again",
            "log/test_checkpoints.py::test_a_flipped_bit_in_a_checkpoint_changes_no_offset",
            f"{FOUND_LOGS}::test_a_flipped_bit_in_the_checkpoint_of_log_starts_hides_no_record",
            f"{LOST_LOGS}::test_a_flipped_bit_in_any_small_file_hides_no_record",
        ],
        "an index of a segment is damaged, cut or missing (`.index`, `.timeindex`, `.txnindex`), also while the node "
        "runs": [
            f"{UNDER}::test_an_index_is_rebuilt_in_place",
            f"{UNDER}::test_no_flipped_bit_of_an_offset_index_hides_a_record",
            f"{UNDER}::test_the_index_of_aborted_transactions_is_written_again",
            f"{RECOVERY}::test_damaged_indexes_are_rebuilt",
            "log/test_damage.py::test_a_damaged_index_misleads_no_truncation",
            "log/test_damage.py::test_a_damaged_time_index_deletes_no_segment",
        ],
        "an earlier copy of a segment is put over the newer one, or a segment is cut, and the node appends behind it": [
            f"{GAPS}::test_a_start_finds_what_an_older_copy_of_the_newest_segment_lacks",
            f"{GAPS}::test_scrubbing_finds_it",
            f"{GAPS}::test_no_reader_continues_behind_it",
        ],
        "a segment that another process cuts or overwrites while the node runs": [
            BENEATH,
            f"{SCRUBS}::test_a_log_whose_file_is_too_short_for_a_reader_is_checked_at_once",
            "broker/test_mended_replicas.py::"
            "test_a_replica_whose_cut_finds_damage_leaves_the_in_sync_set_until_it_has_all_records",
        ],
        "a segment that another process removes or replaces while the node runs": [
            BENEATH,
            f"{UNDER}::test_a_segment_that_was_removed_is_written_again_on_the_real_file_system",
            f"{SCRUBS}::test_a_single_node_writes_a_segment_again_that_another_process_has_removed",
            f"{UNDER}::test_a_segment_that_was_replaced_is_damaged_and_can_be_copied_again",
            f"{REMOVED}::test_a_segment_that_is_gone_is_copied_again_once_it_is_scrubbed",
        ],
        "an older copy replaces a partition's directory while the node runs": [
            f"{LOST_LOGS}::test_a_directory_that_an_older_copy_has_replaced_may_lack_records",
            f"{UNDER}::test_a_segment_that_was_replaced_is_damaged_and_can_be_copied_again",
        ],
        "a partition's directory that is removed or renamed while the node runs": [
            BENEATH,
            f"{REMOVED}::test_a_replica_is_copied_again_once_a_write_fails",
            f"{REMOVED}::test_a_replica_without_writes_is_copied_again_once_it_is_scrubbed",
            f"{REMOVED}::test_the_only_replica_stays_as_it_is",
        ],
        "`partition.metadata` damaged beyond a few bits, or files that no start can open": [
            f"{LYING}::test_a_partition_that_can_not_be_opened_is_put_aside_and_copied_again"
        ],
        "a compacted segment that a kill left as `.swap` is damaged": [
            "log/test_compaction.py::test_a_damaged_swap_file_takes_the_place_of_nothing_that_is_there"
        ],
        "the metadata store is an older copy of itself, and any node starts first": [
            f"{LYING}::test_the_node_that_was_away_starts_first_on_an_older_metadata_store",
            f"{LYING}::test_a_node_that_saw_no_lost_commit_leads_nothing_alone_on_an_older_metadata_store",
            "broker/test_store_memory.py::test_a_restored_store_is_older_than_what_a_node_has_seen",
            "metadata/test_zookeeper_restored.py::test_a_generation_that_goes_back_is_an_older_store",
        ],
        "the metadata store is from before a topic was created": [
            f"{ADOPTED}::test_topics_that_the_store_has_lost_are_adopted_with_every_record",
            "server/test_lying_disks.py::test_a_topic_that_the_restored_store_does_not_know_is_adopted",
        ],
        "a copy of the directory is started as the same node, on another machine": [
            f"{ZOOKEEPER}::test_a_node_in_a_copy_of_a_data_directory_is_refused_while_the_other_one_runs",
            f"{LYING}::test_a_node_whose_copy_has_taken_its_place_leads_no_more",
            f"{LYING}::test_a_node_whose_copy_has_taken_its_place_does_not_register_again",
            "broker/test_suspension.py::test_a_process_whose_place_another_one_has_taken_refuses_all_clients_for_good",
        ],
        "two processes use the directory at the same time": [
            f"{LOCKS}::test_a_second_node_is_kept_out_when_the_lock_file_is_removed",
            f"{LOCKS}::test_a_node_ends_when_another_process_uses_its_directory_without_a_lock",
        ],
        "a copy of the directory made while the node ran, put in its place or over it": [
            DISK_LIES,
            "log/test_incarnations.py::test_a_copy_in_the_place_of_the_directory_counts_only_after_a_clean_stop",
        ],
        "a write: no space, an I/O error, no descriptor left": [
            f"{STORAGE}::test_a_full_disk_passes",
            "log/test_upkeep.py::test_no_call_of_an_append_may_fail_half",
            "sim/test_bounds.py::test_a_lack_of_descriptors_passes",
            f"{STATES}::test_a_leader_whose_disk_becomes_read_only_is_followed_by_another",
        ],
        "a read: an I/O error in a segment or index": [
            f"{STORAGE}::test_a_partition_that_can_not_be_read_is_answered_for_itself",
            f"{STORAGE}::test_an_index_that_can_not_be_read_is_built_again",
            f"{UNREADABLE}::test_a_leader_that_can_not_read_a_place_gives_way_and_copies_it_again",
            f"{UNREADABLE}::test_a_coordinator_that_can_not_read_its_log_gives_way",
            f"{UNREADABLE}::test_a_follower_that_can_not_read_a_place_leaves_the_in_sync_replicas_and_copies_it",
        ],
        "an fsync of records that are not acknowledged yet": [
            f"{STORAGE}::test_an_fsync_that_fails_is_its_own_partitions_matter",
            f"{STORAGE}::test_what_an_fsync_could_not_write_is_not_acknowledged_as_a_duplicate",
        ],
        "an fsync of acknowledged records (`page-cache`), or the cut fails too": [
            f"{STORAGE}::test_acknowledged_records_that_an_fsync_could_not_write_shut_the_partition_until_they_are_"
            "written_again",
            f"{STORAGE}::test_a_kill_does_not_make_the_page_cache_worth_more",
        ],
    },
}
PROMISES: dict[str, dict[str, list[str]]] = {
    DURABILITY: {
        "The first records of a partition reach the disk within about a second": [
            f"{STORAGE}::test_with_page_cache_durability_nothing_waits_for_the_disk"
        ],
        "or with `flush.messages=1` of the topic": [
            "sim/test_durability.py::test_with_a_flush_after_each_message_a_record_is_on_the_disk_of_each_replica"
        ],
        "No answer waits for `flush.ms`": [
            f"{STORAGE}::test_an_append_that_makes_a_flush_due_is_answered_behind_it_and_no_answer_waits_for_the_time_of_"
            "a_flush"
        ],
        "as many successive failures of a single machine as it has other in-sync replicas": [
            f"{BY_HAND}::test_all_but_the_last_are_lost_one_after_the_other_and_nothing_acknowledged_is"
        ],
        "A replica that may have lost bytes is not elected before one that has all records": [
            f"{ELECTED}::test_the_last_in_sync_replica_loses_its_end_and_an_eligible_one_leads"
        ],
        "counts as incomplete until the leader has the new end of its log": [
            "broker/test_mended_replicas.py::test_a_mended_replica_does_not_join_by_the_end_that_it_had_before"
        ],
        "never cut below its own high watermark": [
            "broker/test_following.py::test_a_replica_keeps_what_is_committed_until_the_cluster_has_accepted_its_loss",
            f"{LYING}::test_a_replica_that_refuses_to_be_cut_leads_instead",
        ],
        "of the eligible replicas are up, the one with the longest log leads": [
            f"{ELECTIONS}::test_of_killed_replicas_the_one_with_the_longest_log_leads_once_enough_have_reported",
            f"{TAILS}::test_a_replica_that_was_killed_last_waits_for_one_that_was_killed_before",
        ],
        "because others have lost records too, none is eligible": [
            f"{ELECTIONS}::test_fewer_killed_replicas_than_acknowledge_a_record_are_not_eligible"
        ],
        "stopped cleanly leads at once": [
            f"{ELECTIONS}::test_an_eligible_replica_that_was_not_killed_leads_at_once",
            f"{TAILS}::test_a_replica_that_stopped_cleanly_waits_for_no_other",
        ],
        "only the logs of replicas that are up are compared": [
            f"{ELECTIONS}::test_a_killed_replica_waits_for_none_where_one_replica_may_acknowledge"
        ],
        "the one with the longest log leads": [
            f"{ELECTIONS}::test_where_nobody_is_eligible_the_longest_log_leads_once_all_have_reported"
        ],
        "Replicas that have lost all their records also count as up": [
            f"{ELECTIONS}::test_replicas_that_have_lost_all_records_do_not_stop_an_election_if_another_one_has_them",
            f"{LYING}::test_a_torn_end_and_a_lost_directory_leave_a_leader",
        ],
        "first shows the replica that would lead": [
            "server/test_moving.py::test_what_an_unclean_election_loses_is_shown_before"
        ],
        "once fewer than `min.insync.replicas` of its replicas are missing": [
            f"{ELECTIONS}::test_after_all_nodes_were_down_a_partition_waits_for_so_many_that_one_has_every_acknowledged_"
            "record"
        ],
        "leader epochs rise by 10,000 to 110,000": [
            f"{ELECTIONS}::test_replicas_that_lead_without_each_other_lead_in_epochs_far_apart",
            f"{LYING}::test_two_leaders_of_which_only_one_store_knows_have_different_epochs",
        ],
        "Remove a node that does not return": [
            f"{ADOPTED}::test_the_removal_of_a_node_that_does_not_return_releases_what_waits_for_it"
        ],
        "If you delete the topic, no node brings it back": [
            f"{ADOPTED}::test_a_topic_that_is_deleted_while_it_is_on_hold_does_not_come_back"
        ],
        "Until all nodes have started, the cluster creates no topic automatically": [
            f"{ADOPTED}::test_no_topic_is_created_automatically_before_all_nodes_have_started"
        ],
        "you may move a stopped node to another disk": [
            "log/test_incarnations.py::test_a_copy_in_the_place_of_the_directory_counts_only_after_a_clean_stop"
        ],
        "except a partition without other replicas": [f"{LYING}::test_a_node_without_others_starts_with_a_hot_copy"],
        "Start it before the other nodes": [
            f"{ADOPTED}::test_a_node_that_joined_after_the_backup_starts_first_and_keeps_its_replica"
        ],
        "renamed to `-stray`, never deleted; the node's log names them": [
            f"{ADOPTED}::test_the_directory_of_a_replica_that_was_moved_after_the_backup_is_kept_aside"
        ],
        "A clock that is behind, or steps back, deletes nothing early": [
            "log/test_timestamps_ahead.py::test_a_clock_that_steps_back_deletes_nothing"
        ],
        "It notices if the whole log is lost": [
            f"{LOST_LOGS}::test_a_log_that_is_lost_before_its_first_checkpoint_is_missed"
        ],
        "the next start checks the end of every log that was not closed cleanly": [
            f"{RECOVERY}::test_a_tail_cut_at_every_byte_keeps_every_whole_batch",
            f"{RECOVERY}::test_a_crash_at_every_step_of_a_workload",
        ],
        "since a clean stop, its files were cut, removed or replaced by an older copy": [
            f"{FOUND}::test_what_happened_to_the_files_since_a_clean_stop_is_found",
            f"{FOUND}::test_an_older_copy_of_the_files_is_found",
        ],
        "a batch claims offsets or a leader epoch that contradict the neighbouring batches": [
            f"{FOUND}::test_a_batch_that_claims_too_high_offsets_does_not_end_the_log",
            f"{FOUND}::test_a_flipped_bit_in_the_epoch_of_a_batch_changes_no_epoch",
        ],
        "nothing is written twice": [
            "sim/test_found.py::test_all_five_batches_in_flight_are_known_as_duplicates_after_a_restart"
        ],
        "Another in-sync replica then leads these partitions": [
            f"{ELECTED}::test_a_leader_whose_disk_is_full_is_followed_by_another",
            f"{ELECTED}::test_nobody_waits_for_a_follower_whose_disk_is_full",
            f"{ELECTED}::test_a_leader_whose_fsync_fails_is_followed_by_another",
        ],
        "the node closes the connection. The repeated request gets the error": [
            "server/test_unreadable.py::test_a_read_error_while_an_answer_is_sent"
        ],
        "this one stays the leader, and its records can be read": [
            f"{ELECTED}::test_a_full_disk_of_the_last_in_sync_replica_leaves_it_the_leader"
        ],
        "Then it answers KAFKA_STORAGE_ERROR": [
            f"{ELECTED}::test_a_leader_whose_disk_is_full_answers_no_reader_where_who_may_lead_is_down"
        ],
        "Excess connections are refused": [
            "server/test_descriptors.py::test_connections_are_refused_before_the_log_lacks_descriptors"
        ],
        "only that partition is offline": [
            f"{DIRECTORIES}::test_an_unreadable_partition_is_out_of_service_alone_until_it_can_be_read"
        ],
        "moved away is created again, empty": [
            f"{DIRECTORIES}::test_a_partition_out_of_service_can_be_deleted_or_emptied"
        ],
        "stays offline until you repair or restore the files": [
            f"{FOUND_LOGS}::test_a_partition_without_other_replicas_stays_as_it_is_when_it_can_not_be_opened"
        ],
        "everything above its recovery point is checked": [
            "sim/test_unrecovered.py::test_a_log_that_no_start_could_open_since_a_power_cut_is_checked_whole"
        ],
        "gets CORRUPT_MESSAGE instead": ["log/test_order.py::test_a_flipped_bit_of_a_base_offset_hides_no_record"],
        "so that it counts after a restart": [f"{SCRUBS}::test_damage_counts_after_a_restart_until_it_is_repaired"],
        "`ottla log verify DATA_DIR` checks all segments and indexes": [
            "cli/test_log.py::test_verify_finds_what_was_damaged",
            "cli/test_log.py::test_verify_finds_a_flipped_bit_in_an_index",
            "cli/test_log.py::test_verify_finds_files_that_are_missing",
        ],
        "locks keep out a second node, and also a Kafka broker": [
            f"{LOCKS}::test_a_running_kafka_keeps_a_node_out",
            f"{LOCKS}::test_a_running_node_keeps_a_kafka_out",
        ],
        "adopts these topics": [
            f"{DIRECTORIES}::test_what_was_taken_over_is_kept_until_somebody_confirms_its_configs",
            "server/test_metadata_store.py::test_topics_outlive_the_loss_of_the_newest_commits",
        ],
        "ends the hold of that topic": [f"{DIRECTORIES}::test_a_hold_ends_as_any_config_does"],
        "is refused with a message, because it would know none of its topics": [
            "server/test_standalone_metadata.py::test_what_nodes_share_is_nothing_for_a_node_alone",
            "server/test_standalone_metadata.py::test_an_empty_store_of_a_cluster_does_not_get_what_another_one_knew",
        ],
        "it adopts the replicas that it has": [
            "server/test_standalone_metadata.py::test_what_nodes_share_is_nothing_for_a_node_alone"
        ],
        "A key or value with a wrong checksum stops the start": [
            f"{STORE}::test_every_flipped_bit_of_a_value_is_named",
            "server/test_metadata_store.py::test_a_damaged_store_stops_the_start_with_a_sentence",
        ],
        "reports how many commits are missing, and holds every topic": [
            f"{STORE}::test_commits_that_the_log_lost_are_counted_and_their_numbers_never_repeat",
            "server/test_metadata_store.py::test_topics_outlive_the_loss_of_the_newest_commits",
        ],
        "replaced, overwritten or removed ends within a second, with exit code 1": [
            "metadata/test_gone.py::test_a_store_whose_files_are_replaced_says_so_and_takes_nothing",
            "server/test_replaced_store.py::test_a_node_whose_metadata_is_replaced_ends_with_a_sentence",
        ],
        "This works however many commits other nodes have made since the restore": [
            "broker/test_store_memory.py::test_a_node_notices_however_far_others_went_meanwhile"
        ],
        "A request that got this answer has no effect, now or later": [
            "server/test_metadata_store.py::test_a_locked_store_delays_nobody_and_what_was_refused_is_never_done"
        ],
        "renamed to `NAME.ID-stray` and never deleted": [
            f"{DIRECTORIES}::test_a_stranger_with_a_long_name_is_put_aside",
            f"{FOUND_LOGS}::test_the_id_of_another_topic_is_not_mended",
        ],
        "a topic of the same name cannot be created": [
            f"{DIRECTORIES}::test_no_topic_is_made_over_a_directory_that_stays",
            "sim/test_directories.py::test_a_directory_that_cannot_go_keeps_a_topic_of_its_name_from_being_made",
        ],
    },
    CLUSTER: {
        "a single node of three leads no partition that has three replicas": [
            f"{LYING}::test_a_node_that_saw_no_lost_commit_leads_nothing_alone_on_an_older_metadata_store"
        ],
        "you may lose either of them": [KEPT],
        "The command restarts a node that dies": [
            "cli/test_cluster.py::test_detached_nodes_serve_one_is_killed_and_comes_back_and_all_are_stopped"
        ],
        "the node catches up later": [f"{ELECTED}::test_a_topic_is_made_while_a_node_is_down_that_has_to_have_it"],
        "WAITS-FOR names every replica": ["cli/test_cluster_facts.py::test_what_a_partition_lacks"],
        "refuses to remove a node that is up or has a replica": [
            "broker/test_unregister.py::test_who_serves_or_holds_replicas_is_kept",
            f"{NODES}::test_a_node_that_is_down_and_holds_replicas_is_kept",
        ],
        "A removed node stays removed": [
            "cli/test_cluster.py::test_an_interrupt_stops_all_in_order_and_a_removed_node_stays_out_until_it_is_started"
        ],
        "the node that is down gets replicas too, and copies them when it returns": [
            "broker/test_moved_replicas.py::test_nodes_that_are_down_have_replicas_where_there_are_too_few_others"
        ],
        "Producers with `acks=all` see no error": [
            f"{ELECTED}::test_a_leader_that_stops_cleanly_is_missed_for_a_moment_only",
            f"{ELECTED}::test_a_leader_stops_when_everybody_knows_who_leads_instead",
        ],
        "Drain and remove a dead node in the same way": [
            f"{NODES}::test_a_node_that_is_down_and_holds_replicas_is_kept"
        ],
        "other nodes take over its partitions within a few tenths of a second": [
            f"{ELECTED}::test_a_leader_that_is_killed_is_missed_for_a_moment_only",
            "server/test_replication.py::test_the_leader_is_killed_and_nothing_acknowledged_is_lost",
        ],
        "for at most 250 ms": ["broker/test_members.py::test_nobody_waits_long_for_the_next_leader"],
        "closes the connections of the node's clients and every new one": [
            f"{WATCHDOG}::test_a_node_that_stands_still_is_hung_up_on_and_goes_on_when_it_wakes"
        ],
    },
    OPERATIONS: {
        "A snapshot of the whole directory is equivalent to a power cut, and a start recovers from it": [
            "sim/test_seeds.py::test_all_promises_hold",
            f"{RECOVERY}::test_a_crash_at_every_step_of_a_workload",
        ],
        "The start then checks all records that the snapshot may lack": [
            f"{LOCKS}::test_a_boot_id_that_is_no_text_is_another_boot",
            f"{RECOVERY}::test_a_crash_at_every_step_of_a_workload",
        ],
        "the records that were acknowledged before the first copy are kept": [
            f"{STATES}::test_a_cluster_is_restored_from_copies_of_its_nodes_that_were_made_one_after_the_other"
        ],
        "Restore a backup into an empty directory while the node is stopped": [
            "server/test_metadata_store.py::test_a_backup_of_a_stopped_node_is_complete"
        ],
        "Nodes of two successive versions work together": [
            f"{UPGRADE}::test_two_versions_serve_together",
            f"{UPGRADE}::test_the_previous_version_reads_the_rows_of_this_one",
            "broker/test_other_versions.py::"
            "test_a_directory_in_which_an_earlier_version_ran_is_not_taken_for_an_older_copy",
        ],
        "accepts writes again by itself": [f"{STORAGE}::test_a_full_disk_passes"],
        "a lack of descriptors ends by itself too": ["sim/test_bounds.py::test_a_lack_of_descriptors_passes"],
        "The start checks the records in question and reports the result": [
            f"{STORAGE}::test_acknowledged_records_that_an_fsync_could_not_write_shut_the_partition_until_they_are_"
            "written_again"
        ],
        "restore the partition's directory from a backup with the node stopped": [
            f"{FOUND_LOGS}::test_an_older_copy_of_a_partition_is_found"
        ],
    },
}


def rows_of(page: str) -> list[str]:
    """The first cell of each row of a page's tables."""
    lines = text_of(TOP / page).splitlines()
    return [
        line.split("|")[1].strip()
        for before, line in pairwise(lines)
        if line.startswith("| ") and before.startswith("|")
    ]


@cache
def names_in(file: str) -> frozenset[str]:
    tree = tree_of(TOP / "tests" / file)
    return frozenset(each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef))


def test_each_row_has_a_proof() -> None:
    for page, proofs in ROWS.items():
        assert set(rows_of(page)) == {*proofs, *PROVEN_CELL_BY_CELL}, page


def test_each_promise_is_made() -> None:
    for page, promises in PROMISES.items():
        told = " ".join(text_of(TOP / page).split())
        assert [words for words in promises if words not in told] == [], page


@pytest.mark.parametrize("proofs", [*ROWS.values(), *PROMISES.values()])
def test_each_proof_exists(proofs: dict[str, list[str]]) -> None:
    named = [each.split("::") for row in proofs.values() for each in row]
    assert all(proofs.values())
    assert [f"{file}::{name}" for file, name in named if name not in names_in(file)] == []
