"""What an unclean election would lose, as the command shows it before it elects."""

from ottla.cli.replicas.losses import ElectionState, End, Loss, loss_of


def loss(
    ends: dict[int, End], counted_on: tuple[int, ...] = (), leader: int = -1, replicas: tuple[int, ...] = (1, 2, 3)
) -> Loss | None:
    return loss_of(ElectionState("t", 0, leader, replicas, counted_on, ends))


def said(ends: dict[int, End], counted_on: tuple[int, ...] = (), leader: int = -1) -> str:
    found = loss(ends, counted_on, leader)
    assert found is not None
    return found.sentence


def test_a_node_that_is_down_was_in_sync_further_than_the_new_leader() -> None:
    found = loss({1: End(2, 391, 400)}, counted_on=(2,), replicas=(1, 2))
    assert found is not None
    assert (found.leader, found.end_offset, found.records) == (1, 391, 9)
    assert found.sentence == (
        "partition t-0: node 1 would lead with offsets up to 391; node 2, which is down, was in sync up to at least "
        "400: up to 9 acknowledged records are lost"
    )


def test_the_log_that_ends_last_leads_by_epoch_before_offset() -> None:
    assert said({1: End(2, 400), 2: End(3, 390), 3: End(3, 391)}) == (
        "partition t-0: node 3 would lead with offsets up to 391; the log of node 1 ends at 400: up to 9 acknowledged "
        "records are lost"
    )


def test_a_committed_record_that_no_replica_here_has_is_lost() -> None:
    assert "records up to 400 were committed: up to 1 acknowledged record is lost" in said({1: End(2, 399, 400)})


def test_what_a_node_that_is_down_has_may_not_be_known() -> None:
    assert said({1: End(2, 391)}, counted_on=(2,)) == (
        "partition t-0: node 1 would lead with offsets up to 391; node 2, which is down, was in sync and may have more "
        "records; node 3, which is down, may have records that node 1 lacks"
    )


def test_a_node_that_is_up_may_not_be_able_to_use_its_log() -> None:
    found = loss_of(ElectionState("t", 0, -1, (1, 2), (2,), {1: End(2, 391)}, frozenset({1, 2})))
    assert found is not None
    assert "node 2, which cannot use its log, was in sync and may have more records" in found.sentence


def test_nothing_is_lost_where_all_logs_are_known() -> None:
    assert said({1: End(2, 391), 2: End(2, 391), 3: End(1, 5)}) == (
        "partition t-0: node 1 would lead with offsets up to 391; no replica is known to have more"
    )


def test_a_replica_that_refuses_to_follow_gives_in() -> None:
    assert loss({1: End(2, 391), 2: End(2, 391)}, leader=1) is None
    assert said({1: End(2, 391), 2: End(1, 400)}, leader=1) == (
        "partition t-0: node 1 leads with offsets up to 391; the log of node 2 ends at 400: up to 9 acknowledged "
        "records are lost"
    )


def test_no_replica_can_lead() -> None:
    assert said({}, counted_on=(2,)) == "partition t-0: no replica is available, so that none can lead"
    assert loss({}, leader=3) is None
