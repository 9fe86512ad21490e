"""Who leads, who is in sync, who may lead next: the rules of the controller, one partition at a time."""

from collections.abc import Generator, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.cluster import duties
from ottla.broker.cluster.duties import claim, turnover
from ottla.broker.cluster.elections import EPOCHS_SKIPPED, NodeStates, Rules, preferred, settled, skipped_by
from ottla.broker.cluster.isr_changes import IsrProposal, altered
from ottla.broker.cluster.metadata import RowChange
from ottla.metadata.controllers import CONTROLLER, ControllerRecord
from ottla.metadata.image import MetadataImage
from ottla.metadata.nodes import NO_LOG, LogEnd, NodeRecord, NodeState
from ottla.metadata.nodes import NODES as NODE_ROWS
from ottla.metadata.topics import TOPICS, PartitionRecord, TopicImage, TopicRecord, Topics
from ottla.protocol.errors import ErrorCode as E

ALL = NodeStates(frozenset((1, 2, 3)))
TWO = Rules(2)
WHOLE = PartitionRecord((1, 2, 3), (1, 2, 3), 1, 5, 9)


def image_of(topic: TopicImage, nodes: Mapping[str, NodeRecord]) -> MetadataImage:
    return MetadataImage.of(0, {TOPICS: Topics({topic.name: topic}), NODE_ROWS: nodes})


def rows_of(image: MetadataImage, turn: duties.Turnover, rules: Rules) -> list[RowChange]:
    """What the controller has to write."""
    return sliced(image, turn, rules)[1]


def sliced(image: MetadataImage, turn: duties.Turnover, rules: Rules) -> tuple[int, list[RowChange]]:
    """The same, and in how many slices that is found out."""
    return in_slices(duties.duties(image, turn, lambda _: rules))


def in_slices(steps: Generator[None, None, list[RowChange]]) -> tuple[int, list[RowChange]]:
    """The number of slices of this work, and its rows."""
    slices = 1
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            return slices, ended.value
        slices += 1


def active(*nodes: int) -> NodeStates:
    return NodeStates(frozenset(nodes))


def test_nothing_changes_where_nothing_has_to() -> None:
    assert settled(WHOLE, ALL, TWO) is WHOLE
    assert preferred(WHOLE, ALL) is WHOLE


def test_the_next_in_sync_replica_leads_when_the_leader_goes() -> None:
    assert settled(WHOLE, active(2, 3), TWO) == PartitionRecord((1, 2, 3), (2, 3), 2, 6, 10)


def test_a_follower_that_goes_changes_no_leader_epoch() -> None:
    assert settled(WHOLE, active(1, 2), TWO) == PartitionRecord((1, 2, 3), (1, 2), 1, 5, 10)


def test_who_leaves_a_set_that_is_not_enough_may_lead_cleanly() -> None:
    alone = settled(settled(WHOLE, active(1, 2), TWO), active(2), TWO)
    assert (alone.leader, alone.isr, alone.elr) == (2, (2,), (1,))
    nobody = settled(alone, active(), TWO)
    assert (nobody.leader, nobody.isr, nobody.elr) == (-1, (), (1, 2))
    back = settled(nobody, active(1, 3), TWO)
    assert (back.leader, back.isr, back.elr, back.recovering) == (1, (1,), (2,), False)
    assert settled(nobody, active(3), TWO) is nobody, "3 had left while the set was enough"


def test_a_single_replica_leads_again_when_it_is_back() -> None:
    down = settled(PartitionRecord((2,), (2,), 2), active(1), Rules(1))
    assert (down.leader, down.isr, down.elr, down.leader_epoch) == (-1, (), (2,), 1)
    up = settled(down, active(1, 2), Rules(1))
    assert (up.leader, up.isr, up.elr, up.leader_epoch, up.recovering) == (2, (2,), (), 2, False)


def test_who_lost_bytes_leads_only_as_the_last_one_known_and_that_is_unclean() -> None:
    damaged = NodeStates(frozenset((1,)), damaged=frozenset((2,)))
    down = settled(PartitionRecord((2,), (2,), 2), damaged, Rules(1))
    assert (down.leader, down.isr, down.elr, down.last_known_elr) == (-1, (), (), (2,))
    up = settled(down, active(1, 2), Rules(1))
    assert (up.leader, up.isr, up.recovering) == (2, (2,), True)


def test_where_nobody_is_eligible_the_longest_log_leads_once_all_have_reported() -> None:
    damaged = NodeStates(frozenset((2, 3)), damaged=frozenset((1,)))
    ends = {1: LogEnd(4, 100), 2: LogEnd(5, 60), 3: LogEnd(5, 61)}
    for before in (
        PartitionRecord((1, 2, 3), (1,), 1),
        PartitionRecord((1, 2, 3), (), -1, last_known_elr=(1,)),
        PartitionRecord((1, 2, 3), (), -1, elr=(1,), last_known_elr=(1,)),
    ):
        down = settled(before, damaged, Rules(1))
        assert (down.leader, down.isr, down.elr, down.last_known_elr) == (-1, (), (), (1,))
        assert settled(down, ALL, Rules(1)) is down
        two_of_three = {node_id: ends[node_id] for node_id in (1, 2)}
        assert settled(down, replace(ALL, log_ends=two_of_three), Rules(1)) is down, "3 may have more"
        assert settled(down, NodeStates(frozenset((2, 3)), log_ends=ends), Rules(1)) is down, "1 is not there"
        led = settled(down, replace(ALL, log_ends=ends), Rules(1))
        assert (led.leader, led.isr, led.leader_epoch, led.unclean_epoch, led.recovering) == (3, (3,), 6, 6, True)
        unclean = settled(down, replace(ALL, log_ends=two_of_three), Rules(1, unclean=True))
        assert unclean.leader == 2
    alone = settled(settled(PartitionRecord((1,), (1,), 1), damaged, Rules(1)), ALL, Rules(1))
    assert (alone.leader, alone.recovering) == (1, True)


def killed_at_once() -> PartitionRecord:
    """All in-sync replicas were killed, and have started again."""
    nobody = settled(WHOLE, NodeStates(frozenset(), killed=frozenset((1, 2, 3))), TWO)
    assert (nobody.leader, nobody.elr, nobody.unproven) == (-1, (1, 2, 3), (1, 2, 3))
    return nobody


def test_of_killed_replicas_the_one_with_the_longest_log_leads_once_enough_have_reported() -> None:
    nobody, two = killed_at_once(), frozenset((1, 3))
    ends = {1: LogEnd(5, 10), 3: LogEnd(5, 12)}
    for nodes in (
        NodeStates(frozenset((1,)), log_ends={1: ends[1]}),
        NodeStates(two, log_ends={3: ends[3]}),
        NodeStates(frozenset((1,)), log_ends=ends),
    ):
        assert settled(nobody, nodes, TWO) is nobody, nodes
    led = settled(nobody, NodeStates(two, log_ends=ends), TWO)
    assert (led.leader, led.isr, led.elr, led.unproven) == (3, (3,), (1, 2), (1, 2))
    assert led.unclean_epoch == -1
    by_epoch = NodeStates(two, log_ends={**ends, 1: LogEnd(6, 9)})
    assert settled(nobody, by_epoch, TWO).leader == 1


def test_a_killed_replica_waits_for_none_where_one_replica_may_acknowledge() -> None:
    assert settled(killed_at_once(), active(2), Rules(1)).leader == 2
    alone = settled(PartitionRecord((1,), (1,), 1), NodeStates(frozenset(), killed=frozenset((1,))), TWO)
    assert settled(alone, active(1), TWO).leader == 1


def test_an_eligible_replica_that_was_not_killed_leads_at_once() -> None:
    mixed = replace(killed_at_once(), unproven=(1, 2))
    assert settled(mixed, NodeStates(frozenset((1, 3)), log_ends={1: LogEnd(5, 12)}), TWO).leader == 3


def test_killed_replicas_lead_at_once_where_unclean_elections_are_allowed() -> None:
    led = settled(killed_at_once(), active(2), replace(TWO, unclean=True))
    assert (led.leader, led.recovering, led.unclean_epoch) == (2, True, led.leader_epoch)


def test_a_killed_replica_stays_unproven_until_it_is_in_sync_again() -> None:
    pair = PartitionRecord((1, 2, 3), (1, 2), 1, 5, 9)
    left = settled(pair, NodeStates(frozenset((1,)), killed=frozenset((2,))), TWO)
    assert (left.leader, left.isr, left.elr, left.unproven) == (1, (1,), (2,), (2,))
    without_leader = settled(left, active(2), TWO)
    assert (without_leader.leader, without_leader.elr, without_leader.unproven) == (-1, (2, 1), (2,))
    assert settled(without_leader, active(1, 2), TWO).leader == 1
    back = altered(left, IsrProposal(1, left.leader_epoch, left.partition_epoch, ((1, 11), (2, 12))), NODES, TWO)
    assert isinstance(back, PartitionRecord)
    assert (back.isr, back.elr, back.unproven) == ((1, 2), (), ())


def test_a_replica_that_was_down_is_unproven_when_it_starts_again_after_a_kill() -> None:
    alone = PartitionRecord((1, 2, 3), (1,), 1, 5, 9, elr=(2,))
    nodes = NodeStates(frozenset((1,)), killed=frozenset((2,)))
    assert duties.is_concerned(alone, nodes)
    assert settled(alone, nodes, TWO).unproven == (2,)


def test_fewer_killed_replicas_than_acknowledge_a_record_are_not_eligible() -> None:
    """Replica 3 has lost bytes: whether 1 or 2 lies is not known."""
    pair = PartitionRecord((1, 2, 3), (1, 3), 1, 5, 9)
    after = settled(pair, NodeStates(frozenset(), damaged=frozenset((3,)), killed=frozenset((1, 3))), TWO)
    assert (after.leader, after.isr, after.elr, after.unproven, after.last_known_elr) == (-1, (), (), (), (1,))
    ends = {1: LogEnd(-1, 0), 2: LogEnd(5, 7), 3: LogEnd(5, 8)}
    assert settled(after, active(1, 2), TWO).leader == -1
    assert settled(after, replace(ALL, log_ends=ends), TWO).leader == 3


def test_a_leaving_leader_stays_while_the_only_other_replica_is_unproven() -> None:
    alone = PartitionRecord((1, 2, 3), (1,), 1, 5, 9, elr=(2,), unproven=(2,))
    assert settled(alone, NodeStates(frozenset((2,)), frozenset((1,))), TWO) is alone


def test_a_killed_node_that_is_given_up_before_it_was_active_leaves_its_replicas_unproven() -> None:
    node = NodeRecord("a", 1, incarnation="new", state=NodeState.STARTING, killed=True)
    image = image_of(TopicImage("t", TopicRecord(bytes(16), {}, (PartitionRecord((1, 2), (1,), 1),)), 1), {"1": node})
    rows = rows_of(image, turnover(image, {}), Rules(1))
    (placed,) = next(row.record.partitions for row in rows if isinstance(row.record, TopicRecord))
    assert placed.unproven == (1,)


def test_replicas_that_have_lost_all_records_do_not_stop_an_election_if_another_one_has_them() -> None:
    down = PartitionRecord((1, 2, 3), (), -1, 5, 9)
    for emptied, min_isr, leader in ((1, 2, 2), (2, 3, 3), (1, 1, -1), (2, 2, -1), (3, 3, -1)):
        ends = {node_id: NO_LOG if node_id <= emptied else LogEnd(4, 17) for node_id in (1, 2, 3)}
        after = settled(down, replace(ALL, log_ends=ends), Rules(min_isr))
        assert after.leader == leader, (emptied, min_isr)


def test_an_in_sync_replica_that_refuses_to_follow_the_leader_leads() -> None:
    after = settled(WHOLE, replace(ALL, refusing=frozenset((3,))), TWO)
    assert after == replace(WHOLE, leader=3, isr=(3,), leader_epoch=6, partition_epoch=10)
    eligible = PartitionRecord((1, 2, 3), (1,), 1, 5, 9, elr=(2, 3))
    after = settled(eligible, replace(ALL, refusing=frozenset((3,))), TWO)
    assert after == replace(eligible, leader=3, isr=(3,), elr=(2,), leader_epoch=6, partition_epoch=10)
    out_of_sync = PartitionRecord((1, 2, 3), (1, 2), 1, 5, 9)
    assert settled(out_of_sync, replace(ALL, refusing=frozenset((3,))), TWO) is out_of_sync


def test_unclean_elections_have_to_be_allowed() -> None:
    down = settled(PartitionRecord((1, 2, 3), (1,), 1), active(2, 3), TWO)
    assert down.leader == -1
    unclean = settled(down, active(2, 3), Rules(2, unclean=True))
    assert (unclean.leader, unclean.isr, unclean.elr, unclean.recovering) == (2, (2,), (), True)


def test_a_leaving_node_hands_over_what_another_can_take() -> None:
    leaving = NodeStates(frozenset((2, 3)), frozenset((1,)))
    assert settled(WHOLE, leaving, TWO) == PartitionRecord((1, 2, 3), (2, 3), 2, 6, 10)
    only = PartitionRecord((1,), (1,), 1)
    assert settled(only, leaving, TWO) is only


def test_a_leader_whose_log_takes_nothing_is_followed_by_who_holds_all() -> None:
    """In sync, or eligible; where there is nobody it stays, as it can be read."""
    assert settled(WHOLE, ALL.without({1}), TWO) == PartitionRecord((1, 2, 3), (2, 3), 2, 6, 10)
    eligible = PartitionRecord((1, 2, 3), (1,), 1, 5, 9, elr=(2,))
    after = settled(eligible, active(1, 2).without({1}), TWO)
    assert (after.leader, after.isr, after.elr) == (2, (2,), (1,))
    only = PartitionRecord((1, 2, 3), (1,), 1, 5, 9)
    assert settled(only, ALL.without({1}), Rules(1)) is only


def test_the_first_of_the_assignment_is_preferred_where_it_may_lead() -> None:
    elsewhere = replace(WHOLE, leader=2)
    assert preferred(elsewhere, ALL).leader == 1
    assert preferred(elsewhere, active(2, 3)) is elsewhere
    assert preferred(replace(elsewhere, isr=(2, 3)), ALL) == replace(elsewhere, isr=(2, 3))


def test_a_node_that_lost_bytes_and_is_given_up_before_it_was_active_may_not_lead() -> None:
    """Its next registration in the same life does not say so any more."""
    alone = PartitionRecord((1, 2), (1,), 1, 5, 9, elr=(2,))
    node = NodeRecord("b", 1, incarnation="second", state=NodeState.STARTING, intact=False)
    topic = TopicImage("t", TopicRecord(bytes(16), {}, (alone,)), 1)
    image = image_of(topic, {"1": NodeRecord("a", 1, incarnation="first"), "2": node})
    rows = rows_of(image, turnover(image, {1: "first"}), TWO)
    assert [row.key for row in rows] == ["nodes/2", "topic/t"]
    assert isinstance(rows[1].record, TopicRecord)
    assert rows[1].record.partitions[0].elr == ()


def test_a_node_with_an_incomplete_log_does_not_lead_that_partition_and_leads_others() -> None:
    alone = PartitionRecord((1, 2), (), -1, 5, 9, elr=(2,), last_known_elr=(2,))
    place, other_end = (bytes(16), 0), LogEnd(4, 17)
    node = NodeRecord(
        "b",
        1,
        incarnation="second",
        state=NodeState.STARTING,
        incomplete=(place,),
        refusing={place: 3},
        log_ends={place: (5, other_end)},
    )
    assert NodeRecord.decode(node.encode()) == node
    topic = TopicImage("t", TopicRecord(bytes(16), {}, (alone, alone)), 1)
    image = image_of(topic, {"1": NodeRecord("a", 1, incarnation="first"), "2": node})
    _, row = rows_of(image, turnover(image, {1: "first", 2: "second"}), Rules(1))
    assert isinstance(row.record, TopicRecord)
    incomplete, whole = row.record.partitions
    assert (incomplete.leader, incomplete.isr, incomplete.elr) == (-1, (), ())
    assert (whole.leader, whole.isr, whole.recovering) == (2, (2,), False)


@pytest.mark.parametrize(
    ("min_isr", "replicas", "there", "led"),
    [
        (2, 3, (3,), False),
        (2, 3, (2, 3), True),
        (3, 5, (1, 5), False),
        (3, 5, (1, 4, 5), True),
        (2, 5, (1, 4, 5), False),
        (1, 3, (3,), False),
        (1, 3, (1, 3), True),
        (1, 2, (2,), True),
        (1, 1, (1,), True),
    ],
)
def test_after_all_nodes_were_down_a_partition_waits_for_so_many_that_one_has_every_acknowledged_record(
    min_isr: int, replicas: int, there: tuple[int, ...], led: bool
) -> None:
    everyone = tuple(range(1, replicas + 1))
    down = PartitionRecord(everyone, (), -1, 5, 9, elr=everyone)
    missing = frozenset(everyone) - frozenset(there)
    nodes, rules = NodeStates(frozenset(there), missing=missing), Rules(min_isr)
    after = settled(down, nodes, rules)
    assert (after.leader != -1) == led
    assert settled(down, nodes, replace(rules, unclean=True)).leader == there[0], "an operator does not wait"
    if missing and led:
        assert after.leader_epoch >= 5 + EPOCHS_SKIPPED, "a missing one may have led in the next ones"
    elif led:
        assert after.leader_epoch == 6
    else:
        assert after is down


def test_replicas_that_lead_without_each_other_lead_in_epochs_far_apart() -> None:
    """The second one does not know of the first: the metadata store was restored from a copy made before. Each may lead
    again and again."""
    down = PartitionRecord((1, 2), (), -1, 5, 9, elr=(1, 2))
    at_first = NodeStates(frozenset((2,)), missing=frozenset((1,)), epochs_skipped=skipped_by("one controller"))
    first = settled(down, at_first, Rules(1))
    later = NodeStates(frozenset((1,)), missing=frozenset((2,)), epochs_skipped=skipped_by("another"))
    second = settled(down, later, Rules(1))
    assert (first.leader, second.leader) == (2, 1)
    assert abs(first.leader_epoch - second.leader_epoch) > 1_000


def test_a_node_that_can_not_compare_the_store_counts_as_missing_unless_all_are_there() -> None:
    down = PartitionRecord((1, 2, 3), (), -1, 5, 9, elr=(1, 2, 3))
    forgetful = NodeStates(frozenset((1, 2)), missing=frozenset((3,)), forgetful=frozenset((1,)))
    assert settled(down, forgetful, TWO) is down
    assert settled(down, replace(ALL, forgetful=frozenset((1, 2))), TWO).leader == 1


def registered(incarnation: str, state: NodeState, generation: int) -> NodeRecord:
    return NodeRecord("a", 1, incarnation=incarnation, state=state, broker_epoch=generation, version=generation)


def controlled(nodes: Mapping[str, NodeRecord], controller: ControllerRecord | None = None) -> MetadataImage:
    return MetadataImage.of(60, {NODE_ROWS: nodes, CONTROLLER: controller})


def test_a_node_that_has_just_started_claims_nothing_while_another_one_is_active() -> None:
    nodes = {"1": registered("new", NodeState.STARTING, 59), "2": registered("old", NodeState.ACTIVE, 20)}
    gone = ControllerRecord(3, "gone", 4, 30, down_until=17)
    image = controlled(nodes, gone)
    assert claim(image, {1: "new", 2: "old"}, 1, "new") is None
    active_one = claim(image, {1: "new", 2: "old"}, 2, "old")
    assert active_one is not None
    assert active_one.record == ControllerRecord(2, "old", 5, down_until=17)
    first = claim(image, {1: "new"}, 1, "new")
    assert first is not None
    assert first.record == (claimed := ControllerRecord(1, "new", 5, down_until=58))
    assert ControllerRecord.decode(claimed.encode()) == claimed
    assert claim(controlled({}), {1: "new"}, 1, "new") is None, "it registers first"


def test_nodes_count_that_registered_before_the_first_of_them_claimed() -> None:
    nodes = {
        "1": registered("new-1", NodeState.STARTING, 56),
        "2": registered("new-2", NodeState.STARTING, 58),
        "3": registered("old-3", NodeState.ACTIVE, 20),
    }
    present = {1: "new-1", 2: "new-2"}
    first = claim(controlled(nodes), present, 2, "new-2")
    assert first is not None
    assert isinstance(first.record, ControllerRecord)
    image = controlled(nodes, first.record._replace(version=60))
    assert turnover(image, present).after.missing == {3}
    assert not turnover(image, {**present, 3: "old-3"}).after.missing, "it only stood still: not all were down"


def test_where_a_log_ends_counts_only_in_the_leader_epoch_in_which_it_was_reported() -> None:
    place = (bytes(16), 0)
    for reported, leader in ((6, 1), (5, -1)):
        nodes = {
            str(node_id): NodeRecord(
                "a", 1, incarnation="life", state=NodeState.ACTIVE, log_ends={place: (reported, LogEnd(2, 9))}
            )
            for node_id in (1, 2)
        }
        nobody = PartitionRecord((1, 2), (), -1, 6, 9)
        topic = TopicImage("t", TopicRecord(bytes(16), {}, (nobody,)), 1)
        image = image_of(topic, nodes)
        rows = rows_of(image, turnover(image, {1: "life", 2: "life"}), Rules(1))
        leaders = [each.leader for row in rows if isinstance(row.record, TopicRecord) for each in row.record.partitions]
        assert leaders == ([leader] if leader > 0 else [])


ids = st.frozensets(st.integers(1, 3))


@given(st.lists(st.tuples(ids, ids, ids, ids, st.booleans()), max_size=12), st.integers(1, 3), st.integers(1, 3))
def test_whatever_happens_the_record_makes_sense(
    turns: list[tuple[frozenset[int], frozenset[int], frozenset[int], frozenset[int], bool]], count: int, min_isr: int
) -> None:
    """Sets within the replicas, disjoint, a leader in sync, epochs that only
    rise; and where a clean leader is there one leads."""
    replicas = (1, 2, 3)[:count]
    placed = PartitionRecord(replicas, replicas, 1)
    for here, leaving, damaged, killed, unclean in turns:
        killed -= here | leaving  # they are starting
        nodes = NodeStates(here - leaving - damaged, leaving - damaged, damaged, killed)
        after = settled(placed, nodes, Rules(min_isr, unclean))
        assert set(after.isr) <= set(replicas)
        assert set(after.elr) <= set(replicas)
        assert not set(after.isr) & set(after.elr)
        assert after.leader in after.isr if after.leader != -1 else True
        assert not (after.elr and len(after.isr) >= min(min_isr, count))
        led_by_log = after.unclean_epoch > placed.unclean_epoch
        assert (after.leader_epoch > placed.leader_epoch) == (led_by_log or after.leader != placed.leader)
        assert after.leader_epoch - placed.leader_epoch <= 1 or led_by_log
        assert after.partition_epoch - placed.partition_epoch == (after != placed)
        assert set(after.unproven) <= set(after.elr)
        if nodes.active & {*placed.isr, *placed.elr} - {*placed.unproven}:
            assert after.leader in nodes.active
            assert unclean or not after.recovering or placed.recovering
        if not unclean and after.leader != -1 and count > 1:
            assert after.leader in {*placed.isr, *placed.elr}
        assert settled(after, nodes, Rules(min_isr, unclean)) is after
        placed = after


NODES = {
    1: NodeRecord("a", 1, broker_epoch=11),
    2: NodeRecord("a", 2, broker_epoch=12),
    3: NodeRecord("a", 3, broker_epoch=13),
}
PAIR = PartitionRecord((1, 2, 3), (1, 2), 1, 5, 9)


def proposed(*isr: tuple[int, int], leader: int = 1, leader_epoch: int = 5, partition_epoch: int = 9) -> IsrProposal:
    return IsrProposal(leader, leader_epoch, partition_epoch, isr)


def test_a_replica_joins_and_leaves() -> None:
    grown = altered(PAIR, proposed((1, 11), (3, 13), (2, 12)), NODES, TWO)
    assert grown == PartitionRecord((1, 2, 3), (1, 2, 3), 1, 5, 10)
    shrunk = altered(PAIR, proposed((1, 11)), NODES, TWO)
    assert shrunk == PartitionRecord((1, 2, 3), (1,), 1, 5, 10, elr=(2,))


def test_what_stands_already_is_no_change_whatever_its_epoch() -> None:
    assert altered(PAIR, proposed((2, 12), (1, 11), partition_epoch=8), NODES, TWO) is PAIR


@pytest.mark.parametrize(
    ("proposal", "error"),
    [
        (proposed((1, 11), leader_epoch=6), E.NOT_CONTROLLER),
        (proposed((1, 11), partition_epoch=10), E.NOT_CONTROLLER),
        (proposed((1, 11), leader_epoch=4), E.FENCED_LEADER_EPOCH),
        (proposed((2, 12), leader=2), E.INVALID_REQUEST),
        (proposed((1, 11), partition_epoch=8), E.INVALID_UPDATE_VERSION),
        (proposed((2, 12)), E.INVALID_REQUEST),
        (proposed((1, 11), (4, 1)), E.INVALID_REQUEST),
        (proposed((1, 11), (2, 12), (3, 7)), E.INELIGIBLE_REPLICA),
    ],
)
def test_a_proposal_is_refused(proposal: IsrProposal, error: E) -> None:
    assert altered(PAIR, proposal, NODES, TWO) is error


@pytest.mark.parametrize("state", [NodeState.FENCED, NodeState.LEAVING, NodeState.STARTING])
def test_only_active_nodes_join(state: NodeState) -> None:
    nodes = NODES | {3: replace(NODES[3], state=state)}
    assert altered(PAIR, proposed((1, 11), (2, 12), (3, 13)), nodes, TWO) is E.INELIGIBLE_REPLICA


def test_thousands_of_partitions_get_a_leader_in_one_write_that_is_planned_in_slices() -> None:
    count = 3 * duties.CHECKED_AT_ONCE + 1
    topic = TopicImage("t", TopicRecord(bytes(16), {}, (WHOLE,) * count), 1)
    nodes = {str(each): NodeRecord("a", each, incarnation="life", state=NodeState.ACTIVE) for each in (1, 2, 3)}
    image = image_of(topic, nodes)
    slices, (fenced, row) = sliced(image, turnover(image, {2: "life", 3: "life"}), TWO)
    assert slices == 4
    assert fenced.key == "nodes/1"
    assert isinstance(row.record, TopicRecord)
    assert [each.leader for each in row.record.partitions] == [2] * count


def test_thousands_of_leaderships_return_in_slices() -> None:
    count = 2 * duties.CHECKED_AT_ONCE + 1
    away = replace(WHOLE, leader=2, leader_epoch=5)
    topic = TopicImage("t", TopicRecord(bytes(16), {}, (WHOLE, *(away,) * count)), 1)
    nodes = {str(each): NodeRecord("a", each, incarnation="life", state=NodeState.ACTIVE) for each in (1, 2, 3)}
    image = image_of(topic, nodes)
    slices, (row,) = in_slices(duties.returned(image, turnover(image, dict.fromkeys((1, 2, 3), "life"))))
    assert slices == 3
    assert isinstance(row.record, TopicRecord)
    assert [each.leader for each in row.record.partitions] == [1] * (count + 1)
