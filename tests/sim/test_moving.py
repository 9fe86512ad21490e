"""Stories of replicas that are moved while nodes die: clusters that elect their controller, and look at every step.

The checkers of metadata and of replicas see what may not be; most of these tests only tell the story.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from ottla.broker.cluster import reassignments
from ottla.broker.topics.placement import Placement
from ottla.metadata.topics import PartitionRecord, TopicImage
from ottla.sim.clients.reassigners import Reassigner
from ottla.sim.kernel.clock import MS
from ottla.sim.kernel.trace import InvariantError
from ottla.sim.workloads.cluster import TOPIC
from ottla.sim.workloads.elected_cluster import ElectedCluster
from ottla.sim.workloads.run import DIRECTORY

SEEDS = (0, pytest.param(1, marks=pytest.mark.long))


def running(seed: int, *, nodes: int = 5) -> ElectedCluster:
    """Five nodes, of which three have replicas; producers with acks=all and a reader at work."""
    cluster = ElectedCluster(seed, nodes=nodes)
    cluster.start()
    for _ in range(2):
        cluster.produce(idempotent=True)
    cluster.read()
    more(cluster, 40)
    return cluster


def more(cluster: ElectedCluster, count: int) -> None:
    """So many more records are acknowledged."""
    before = sum(each.acknowledged_count for each in cluster.producers)
    cluster.until(lambda: sum(each.acknowledged_count for each in cluster.producers) >= before + count)


def placed(cluster: ElectedCluster) -> PartitionRecord:
    record = cluster.image.partition(TOPIC, 0)
    assert record is not None
    return record


def others(cluster: ElectedCluster) -> list[int]:
    """The nodes without a replica."""
    return [node_id for node_id in cluster.hosts if node_id not in placed(cluster).replicas]


def begin(cluster: ElectedCluster, target: Sequence[int] | None) -> None:
    """The move begins, or is taken back; it may be at its end with that."""
    admin = Reassigner(cluster, cluster.rng)
    epoch = placed(cluster).partition_epoch

    def begun() -> bool:
        now = placed(cluster)
        if target is None:
            done = not now.is_moving
        else:
            done = now.target == tuple(target) and (now.is_moving or now.partition_epoch > epoch)
        if not done:
            admin.ask(TOPIC, 0, target)
        return done

    cluster.until(begun)


def arrived(cluster: ElectedCluster, target: Sequence[int]) -> None:
    cluster.until(lambda: placed(cluster).replicas == tuple(target) and not placed(cluster).is_moving, 30_000)


def held_up(cluster: ElectedCluster, node_id: int) -> None:
    """This node hears nothing from the others: it can't come in sync."""
    for other in cluster.hosts.values():
        if other is not cluster.hosts[node_id]:
            cluster.world.network.cut_path(other.name, cluster.hosts[node_id].name)


@pytest.mark.parametrize("seed", SEEDS)
def test_all_replicas_move_and_nothing_is_lost(seed: int) -> None:
    cluster = running(seed)
    gone = placed(cluster).replicas
    target = [*others(cluster), gone[2]]
    begin(cluster, target)
    arrived(cluster, target)
    more(cluster, 20)
    cluster.settle()
    for node_id in gone[:2]:
        assert not cluster.hosts[node_id].disk.exists(f"{DIRECTORY}/{TOPIC}-0")


@pytest.mark.parametrize("seed", [3])
def test_a_leader_that_has_lost_its_replica_and_has_not_heard_promises_nothing(seed: int) -> None:
    """It answers readers what was committed until it hears, as Kafka's does: an end that is old by then. With this
    seed a producer and a reader still ask it."""
    cluster = ElectedCluster(seed, nodes=5)
    cluster.start()
    cluster.produce(idempotent=True)
    cluster.read(nearby=True)
    more(cluster, 20)
    gone = cluster.leader()
    assert gone is not None
    target = [*(node_id for node_id in placed(cluster).replicas if node_id != gone), others(cluster)[0]]
    held_up(cluster, target[2])
    begin(cluster, target)
    cluster.ways[gone].latency = lambda _: 600 * MS  # type: ignore[method-assign]
    cluster.world.network.mend()
    cluster.until(lambda: cluster.leader() != gone)
    left = cluster.node(gone).replicas.by_name[TOPIC].partitions[0]
    cluster.run(100)
    end, committed = left.log.log_end_offset, left.log.high_watermark
    for acks in (-1, -1, 1):
        cluster.produce(acks=acks).pace_us = 5 * MS
    for _ in range(8):
        cluster.read().pace_us = 5 * MS
    cluster.run(250)
    assert left.leads
    assert left.log.log_end_offset > end, "somebody believes in it"
    assert left.log.high_watermark == committed
    del cluster.ways[gone].latency
    arrived(cluster, target)
    more(cluster, 20)
    cluster.settle()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_leader_stays_while_its_followers_move(seed: int) -> None:
    cluster = running(seed)
    leader = cluster.leader()
    assert leader is not None
    target = [leader, *others(cluster)]
    begin(cluster, target)
    arrived(cluster, target)
    assert cluster.leader() == leader
    more(cluster, 20)
    cluster.settle()


@pytest.mark.parametrize("seed", SEEDS)
def test_the_leader_dies_while_its_replicas_move(seed: int) -> None:
    cluster = running(seed)
    leader, target = cluster.leader(), others(cluster)
    assert leader is not None
    held_up(cluster, target[1])
    begin(cluster, target)
    cluster.kill(leader)
    cluster.until(lambda: cluster.leader() not in (leader, None))
    more(cluster, 20)
    assert placed(cluster).is_moving
    cluster.begin(leader)
    cluster.world.network.mend()
    arrived(cluster, target)
    cluster.settle()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_target_dies_and_the_move_waits_for_it(seed: int) -> None:
    """It must not end with the others alone (KAFKA-15665)."""
    cluster = running(seed)
    before, target = placed(cluster).replicas, others(cluster)
    held_up(cluster, target[0])
    begin(cluster, target)
    cluster.kill(target[0])
    cluster.until(lambda: target[1] in placed(cluster).isr)
    cluster.run(3_000)
    assert placed(cluster).replicas == (*target, *sorted(before))
    cluster.world.network.mend()
    cluster.begin(target[0])
    arrived(cluster, target)
    cluster.settle()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_move_is_cancelled_when_some_have_arrived(seed: int) -> None:
    cluster = running(seed)
    before, target = placed(cluster).replicas, others(cluster)
    held_up(cluster, target[0])
    begin(cluster, target)
    cluster.until(lambda: target[1] in placed(cluster).isr)
    begin(cluster, None)
    assert set(placed(cluster).replicas) == set(before)
    more(cluster, 20)
    cluster.settle()
    assert not cluster.hosts[target[1]].disk.exists(f"{DIRECTORY}/{TOPIC}-0")


@pytest.mark.parametrize("seed", SEEDS)
def test_the_controller_dies_and_its_successor_ends_the_move(seed: int) -> None:
    cluster = running(seed)
    target = others(cluster)
    held_up(cluster, target[0])
    begin(cluster, target)
    controller = cluster.image.controller
    assert controller is not None
    cluster.kill(controller.node_id)
    cluster.until(lambda: cluster.image.controller is not controller)
    cluster.world.network.mend()
    cluster.begin(controller.node_id)
    arrived(cluster, target)
    cluster.settle()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_replica_goes_while_its_node_is_down_and_comes_back(seed: int) -> None:
    """What the node finds when it starts is not mistaken for what it is to have."""
    cluster = running(seed)
    before = placed(cluster).replicas
    down, stays = next(each for each in before if each != cluster.leader()), others(cluster)
    cluster.kill(down)
    target = [*stays, *(each for each in before if each != down)][:3]
    begin(cluster, target)
    arrived(cluster, target)
    more(cluster, 20)
    cluster.begin(down)
    cluster.run(cluster.rng.randrange(1_000))
    begin(cluster, [down, *target[:2]])
    arrived(cluster, [down, *target[:2]])
    cluster.settle()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_target_that_replaces_another_one_and_is_cancelled(seed: int) -> None:
    cluster = running(seed)
    before, target = placed(cluster).replicas, others(cluster)
    held_up(cluster, target[0])
    begin(cluster, target)
    cluster.until(lambda: target[1] in placed(cluster).isr)
    begin(cluster, [target[0], before[0]])
    cluster.run(500)
    begin(cluster, None)
    assert set(placed(cluster).replicas) == set(before)
    cluster.settle()


@pytest.mark.parametrize("seed", SEEDS)
def test_fewer_and_more_replicas_under_load(seed: int) -> None:
    """From three to one, whose leader then has no followers, and to all five."""
    cluster = running(seed)
    one = [placed(cluster).replicas[1]]
    begin(cluster, one)
    arrived(cluster, one)
    more(cluster, 20)
    everywhere = [*one, *(node_id for node_id in cluster.hosts if node_id not in one)]
    begin(cluster, everywhere)
    arrived(cluster, everywhere)
    more(cluster, 20)
    cluster.kill(one[0])
    more(cluster, 20)
    cluster.settle()


# ---- mistakes that such stories find -------------------------------------------------------------------------------


def ends_when_what_is_added_is_in_sync(patch: pytest.MonkeyPatch) -> None:
    """And not when all of the target are (KAFKA-15665)."""
    patch.setattr(reassignments, "is_complete", lambda placed: bool(set(placed.target) & set(placed.isr)))


def drops_data_before_the_end_is_written(patch: pytest.MonkeyPatch) -> None:
    """A node gives its replica up as soon as it hears that it is to go."""
    place = Placement._place

    def wrong(self: Placement, now: int, topic: TopicImage, index: int) -> Any:
        node_id = self._environment.node_id
        partitions = [
            replace(each, replicas=tuple(n for n in each.replicas if n != node_id))
            if node_id in each.removing and each.leader != node_id
            else each
            for each in topic.partitions
        ]
        return place(self, now, topic._replace(record=replace(topic.record, partitions=tuple(partitions))), index)

    patch.setattr(Placement, "_place", wrong)


def fences_nobody(patch: pytest.MonkeyPatch) -> None:
    """Who loses its replica goes on in the same epoch."""

    def wrong(before: PartitionRecord, after: PartitionRecord) -> PartitionRecord:
        epoch = before.leader_epoch + (after.leader != before.leader)
        return replace(after, leader_epoch=epoch, partition_epoch=before.partition_epoch + 1)

    patch.setattr(reassignments, "counted", wrong)


def goes_back_to_whoever_was_first(patch: pytest.MonkeyPatch) -> None:
    """A move that is cancelled is led by the first replica there was, in sync or not."""

    def wrong(placed: PartitionRecord, nodes: Any, rules: Any) -> PartitionRecord:
        back = placed.origin[-1]
        after = replace(placed, replicas=placed.origin, isr=(back,), leader=back, elr=(), adding=(), removing=())
        return reassignments.counted(placed, after)

    patch.setattr(reassignments, "cancelled", wrong)


def cancelled_with_one_behind(seed: int) -> None:
    """One of the old replicas is not in sync when the move is taken back."""
    cluster = running(seed)
    before, target = placed(cluster).replicas, others(cluster)
    begin(cluster, [*before, *target])
    behind = next(each for each in reversed(before) if each != cluster.leader())
    cluster.kill(behind)
    cluster.until(lambda: behind not in placed(cluster).isr)
    more(cluster, 20)
    begin(cluster, None)
    cluster.settle()


@pytest.mark.parametrize(
    ("bug", "story"),
    [
        (ends_when_what_is_added_is_in_sync, test_a_target_dies_and_the_move_waits_for_it),
        (drops_data_before_the_end_is_written, test_the_leader_dies_while_its_replicas_move),
        (fences_nobody, test_a_leader_stays_while_its_followers_move),
        (goes_back_to_whoever_was_first, cancelled_with_one_behind),
    ],
    ids=lambda each: each.__name__,
)
def test_a_planted_mistake_is_found(
    bug: Callable[[pytest.MonkeyPatch], None], story: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    with pytest.raises(InvariantError):
        story(0)
