"""What has gone wrong in systems like this one, each as a story of a few nodes. The checkers look at every step, so
most of these tests only tell the story; the numbers of issues are Kafka's.

Here the metadata is changed by hand. Stories with an elected controller, a far store, disks that fail and leases that
run out stand in test_cluster_scenarios_elected.py, those of moving replicas in test_moving.py, of transactions in
test_cluster_transactions.py, of epochs and logs that a power cut tore in test_seeds.py and test_found.py, of a writer
of a SQLite store that stops in the middle of a transaction in tests/metadata/test_damage.py.
"""

from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

from ottla.broker.partitions.partition import Partition
from ottla.broker.replication.fetching import Fetching
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.replica.followers import Followers
from ottla.sim.clients.batches import encode_batch
from ottla.sim.clients.replicated import ReplicatedProducer
from ottla.sim.kernel.network import Endpoint
from ottla.sim.workloads.cluster import TOPIC
from tests.harness.sim.cluster_asking import AskedCluster
from tests.harness.sim.hand_cluster import TOPIC_ID, HandCluster

SEEDS = (0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2)))


def running(seed: int = 1, *, producers: int = 2, nodes: int = 3, min_isr: int = 2) -> HandCluster:
    """Nodes with a leader, producers with acks=all and a reader at work."""
    cluster = HandCluster(seed, nodes=nodes, min_isr=min_isr)
    cluster.start()
    for _ in range(producers):
        cluster.produce()
    cluster.read()
    cluster.until(lambda: acknowledged(cluster) > 20 * producers - 1)
    return cluster


def acknowledged(cluster: HandCluster) -> int:
    return sum(each.acknowledged_count for each in cluster.producers)


def replica(cluster: HandCluster, node_id: int) -> Partition:
    return cluster.node(node_id).replicas.by_name[TOPIC].partitions[0]


def part(cluster: HandCluster, node_id: int) -> None:
    """This node and the others reach each other no more; clients reach all."""
    for other in cluster.hosts.values():
        if other is not cluster.hosts[node_id]:
            cluster.world.network.cut_path(cluster.hosts[node_id].name, other.name)
            cluster.world.network.cut_path(other.name, cluster.hosts[node_id].name)


class Stubborn(ReplicatedProducer):
    """It asks nobody who leads."""

    leader: Endpoint

    def endpoint(self) -> Endpoint:
        return self.leader


def stubborn(cluster: HandCluster, node_id: int, acks: int) -> ReplicatedProducer:
    """A producer that believes in this leader whatever happens."""
    endpoint = cluster.hosts[node_id].endpoint
    name = f"stubborn-{len(cluster.producers)}"
    producer = Stubborn(cluster, name, (TOPIC, 0), acks=acks)
    producer.leader = endpoint
    producer.go()
    return producer


def send_home(producer: ReplicatedProducer) -> None:
    producer.running = False
    producer.hang_up()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_restarted_follower_that_leads_has_what_was_acknowledged(seed: int) -> None:
    """It knew less of the high watermark than it had (KIP-101)."""
    cluster = running(seed, nodes=2)
    cluster.kill(2)
    cluster.kill(1)
    cluster.run(1_000)
    cluster.begin(2)
    cluster.until(lambda: cluster.leader() == 2)
    cluster.settle()


@pytest.mark.parametrize("seed", SEEDS)
def test_unlike_records_at_one_offset_become_one(seed: int) -> None:
    """Both were leaders, each with tails of its own, and all stop (KIP-101)."""
    cluster = running(seed)
    part(cluster, 1)
    cluster.deaf.add(1)
    lonely = stubborn(cluster, 1, acks=1)
    cluster.until(lambda: lonely.acknowledged_count > 10)
    send_home(lonely)
    cluster.fence(1)
    cluster.until(lambda: cluster.leader() not in (1, None))
    cluster.produce(acks=1)
    cluster.run(300)
    for node_id in (2, 3, 1):
        cluster.kill(node_id)
    cluster.run(1_000)
    cluster.settle()


@pytest.mark.parametrize("seed", SEEDS)
def test_leaders_that_append_nothing_leave_epochs_that_nobody_knows(seed: int) -> None:
    """KIP-279, KAFKA-7415."""
    cluster = running(seed)
    for producer in cluster.producers:
        producer.winding_down = True
    cluster.run(300)
    for order in permutations((1, 2, 3)):
        for node_id in order:
            if node_id in cluster.isr() and cluster.leader() is not None:
                cluster.move_leader(node_id)
            cluster.run(cluster.rng.randrange(40))
        dying = order[0]
        cluster.kill(dying)
        cluster.run(cluster.rng.randrange(200))
        cluster.begin(dying)
    cluster.produce()
    cluster.run(500)
    cluster.settle()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_follower_misses_an_epoch_between_two_of_one_leader(seed: int) -> None:
    """It must not go on as if nothing had been (KAFKA-7164)."""
    cluster = running(seed)
    cluster.deaf.add(3)
    cluster.world.network.cut_path("node-1", "node-2")
    cluster.run(100)
    cluster.move_leader(2)
    cluster.run(100)
    cluster.move_leader(1)
    cluster.world.network.mend()
    cluster.deaf.clear()
    cluster.tell_all()
    cluster.settle()


@pytest.mark.parametrize("seed", SEEDS)
def test_the_high_watermark_is_there_after_a_restart(seed: int) -> None:
    """Not at 0, and not above the end (KAFKA-3978, 9491)."""
    cluster = running(seed)
    cluster.settle()
    mark = replica(cluster, 2).log.high_watermark
    for node_id in cluster.hosts:
        cluster.stop(node_id)
    cluster.begin(2)
    assert replica(cluster, 2).log.high_watermark == mark > 20
    cluster.settle()


@pytest.mark.parametrize("seed", SEEDS)
def test_an_isolated_leader_acknowledges_nothing_to_acks_all(seed: int) -> None:
    cluster = running(seed)
    part(cluster, 1)
    cluster.deaf.add(1)
    lonely, careless = stubborn(cluster, 1, acks=-1), stubborn(cluster, 1, acks=1)
    cluster.until(lambda: careless.acknowledged_count > 10)
    before = lonely.acknowledged_count
    cluster.fence(1)
    cluster.until(lambda: cluster.leader() not in (1, None))
    total = acknowledged(cluster)
    cluster.until(lambda: acknowledged(cluster) > total + 20)
    assert lonely.acknowledged_count == before
    assert lonely.last_error in (0, ErrorCode.REQUEST_TIMED_OUT)
    for each in (lonely, careless):
        send_home(each)
    cluster.settle()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_shrink_that_is_not_committed_moves_nothing(seed: int) -> None:
    cluster = running(seed)
    cluster.world.network.cut_path("node-1", "controller")
    life = cluster.hosts[3].life
    assert life is not None
    life.pause()
    cluster.run(1_000)
    before = acknowledged(cluster)
    cluster.run(4_000)
    assert acknowledged(cluster) == before, "node 3 is in sync still, as far as anybody knows"
    assert replica(cluster, 1).followers is not None
    assert sorted(cluster.isr()) == [1, 2, 3]
    cluster.world.network.mend()
    cluster.until(lambda: sorted(cluster.isr()) == [1, 2])
    cluster.until(lambda: acknowledged(cluster) > before + 20)
    life.resume()
    cluster.settle()


@pytest.mark.parametrize("seed", SEEDS)
def test_an_answer_of_the_controller_comes_after_another_election(seed: int) -> None:
    """KAFKA-12686, 12751, 13091."""
    cluster = running(seed)
    cluster.kill(3)
    cluster.until(lambda: 3 not in cluster.isr())
    cluster.world.network.cut_path("controller", "node-1")
    cluster.begin(3)
    cluster.until(lambda: 3 in cluster.isr())
    cluster.move_leader(2)
    cluster.move_leader(1)
    cluster.run(300)
    cluster.world.network.mend()
    total = acknowledged(cluster)
    cluster.until(lambda: acknowledged(cluster) > total + 20)
    cluster.settle()


@pytest.mark.parametrize("seed", SEEDS)
def test_nobody_joins_who_is_given_up(seed: int) -> None:
    """It fetches on, and has everything (KIP-841, KAFKA-13916)."""
    cluster = running(seed)
    life = cluster.hosts[3].life
    assert life is not None
    cluster.fence(3)
    cluster.run(2_000)
    assert sorted(cluster.isr()) == [1, 2]
    assert replica(cluster, 3).log.log_end_offset > replica(cluster, 1).log.high_watermark - 100
    cluster.register_again(3, life)
    cluster.until(lambda: sorted(cluster.isr()) == [1, 2, 3])
    cluster.settle()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_bounce_that_lost_its_end_before_anybody_noticed(seed: int) -> None:
    """KAFKA-7235, KIP-966."""
    cluster = running(seed)
    cluster.kill(1, power_cut=True)
    cluster.begin(1, intact=False)
    cluster.until(lambda: cluster.leader() not in (1, None))
    cluster.settle()


@pytest.mark.parametrize("seed", SEEDS)
def test_no_ticket_outlives_its_leadership(seed: int) -> None:
    """Leader, follower, leader, and other records stand at its offsets."""
    cluster = running(seed)
    for other in ("node-2", "node-3"):
        cluster.world.network.cut_path("node-1", other)
    cluster.run(100)
    assert len(cluster.node(1).parking) > 0
    cluster.move_leader(2)
    cluster.run(50)
    cluster.move_leader(1)
    cluster.world.network.mend()
    cluster.settle()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_follower_ends_below_the_leaders_start(seed: int) -> None:
    """The start may be inside of a batch (KAFKA-6975)."""
    cluster = running(seed)
    cluster.kill(3)
    total = acknowledged(cluster)
    cluster.until(lambda: 3 not in cluster.isr() and acknowledged(cluster) > total + 40)
    cluster.readers[0].running = False
    log = replica(cluster, 1).log
    log.delete_records_before(log.high_watermark - 1)
    cluster.begin(3)
    cluster.until(lambda: sorted(cluster.isr()) == [1, 2, 3])
    assert replica(cluster, 3).log.log_start_offset >= log.log_start_offset - 2
    cluster.settle()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_follower_stands_still_for_longer_than_it_may_be_behind(seed: int) -> None:
    cluster = running(seed)
    life = cluster.hosts[2].life
    assert life is not None
    life.pause()
    cluster.until(lambda: sorted(cluster.isr()) == [1, 3])
    total = acknowledged(cluster)
    cluster.until(lambda: acknowledged(cluster) > total + 20)
    life.resume()
    cluster.until(lambda: sorted(cluster.isr()) == [1, 2, 3])
    cluster.settle()


@pytest.mark.parametrize("seed", SEEDS)
def test_too_few_in_sync_take_nothing(seed: int) -> None:
    """And go on when one comes back."""
    cluster = running(seed)
    cluster.kill(2)
    cluster.kill(3)
    cluster.until(lambda: not replica(cluster, 1).has_enough_replicas)
    cluster.run(3_000)
    before = acknowledged(cluster)
    cluster.run(1_000)
    assert acknowledged(cluster) == before
    assert {each.last_error for each in cluster.producers} == {ErrorCode.NOT_ENOUGH_REPLICAS}
    cluster.begin(2)
    cluster.until(lambda: acknowledged(cluster) > before + 20)
    cluster.settle()


@pytest.mark.parametrize("seed", SEEDS)
def test_all_but_the_last_are_lost_one_after_the_other_and_nothing_acknowledged_is(seed: int) -> None:
    cluster = running(seed)
    for node_id in (1, 2, 3, 1, 2, 3):
        cluster.kill(node_id)
        cluster.until(lambda dead=node_id: cluster.leader() not in (dead, None))  # type: ignore[misc]
        total = acknowledged(cluster)
        cluster.until(lambda total=total: acknowledged(cluster) > total + 10)  # type: ignore[misc]
        cluster.begin(node_id)
        cluster.until(lambda: sorted(cluster.isr()) == [1, 2, 3])
    cluster.settle()


@pytest.mark.parametrize("seed", SEEDS)
def test_an_outsider_joins_only_behind_the_beginning_of_the_epoch(seed: int) -> None:
    """The new leader's high watermark is old: what lies between it and the epoch's beginning was acknowledged
    (KAFKA-7128)."""
    cluster = leave_behind(seed)
    cluster.run(200)
    assert epoch_start(cluster, 2) > replica(cluster, 2).log.high_watermark == replica(cluster, 3).log.log_end_offset
    assert 3 not in cluster.isr(), "it has asked, and nothing has reached it yet"
    cluster.world.network.mend()
    cluster.until(lambda: 3 in cluster.isr())
    assert replica(cluster, 3).log.log_end_offset >= epoch_start(cluster, 2)
    cluster.kill(2)
    cluster.until(lambda: cluster.leader() == 3)
    cluster.settle()


def epoch_start(cluster: HandCluster, node_id: int) -> int:
    followers = replica(cluster, node_id).followers
    assert followers is not None
    return followers.start_offset


def leave_behind(seed: int) -> HandCluster:
    """Node 2 leads after node 1, and knows less of what is committed than it has; node 3 has that much, and no more. It
    asks node 2, which can't answer."""
    cluster = running(seed)
    cluster.kill(3)
    cluster.until(lambda: 3 not in cluster.isr())
    total = acknowledged(cluster)
    cluster.until(lambda: acknowledged(cluster) > total + 10)
    for producer in cluster.producers:
        producer.winding_down = True
    cluster.run(500)
    cluster.begin(3)
    cluster.until(lambda: sorted(cluster.isr()) == [1, 2, 3])
    cluster.fence(3)  # it fetches on, and is not in sync
    cluster.run(50)
    for target in ("node-3", "node-2"):
        cluster.world.network.cut_path("node-1", target)
    cluster.producers[0].winding_down = False
    mark = replica(cluster, 1).log.high_watermark
    cluster.until(lambda: replica(cluster, 1).log.log_end_offset > mark)
    cluster.world.network.mend_path("node-1", "node-2")
    cluster.until(lambda: replica(cluster, 1).log.high_watermark > mark)
    cluster.world.network.cut_path("node-1", "node-2")
    for path in (("node-2", "node-3"), ("node-3", "node-2")):
        cluster.world.network.cut_path(*path)
    cluster.kill(1)
    cluster.until(lambda: cluster.leader() == 2)
    life = cluster.hosts[3].life
    assert life is not None
    cluster.register_again(3, life)
    cluster.run(100)
    cluster.world.network.mend_path("node-3", "node-2")
    return cluster


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_appended_before_too_few_were_in_sync_is_not_acknowledged(seed: int) -> None:
    """Between the append and the high watermark the in-sync set became too small (KAFKA-15583)."""
    cluster = running(seed)
    for path in (("node-2", "node-1"), ("node-3", "node-1")):
        cluster.world.network.cut_path(*path)
    cluster.run(100)
    before, mark = acknowledged(cluster), replica(cluster, 1).log.high_watermark
    assert replica(cluster, 1).log.log_end_offset > mark
    for node_id in (2, 3):
        cluster.fence(node_id)
    cluster.run(2_500)
    assert (acknowledged(cluster), replica(cluster, 1).log.high_watermark) == (before, mark)
    assert {each.last_error for each in cluster.producers} <= {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
    }
    cluster.settle()


def test_too_few_copies_of_what_was_appended_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """NOT_ENOUGH_REPLICAS_AFTER_APPEND: committed, and by then too few are in sync. The high watermark stands still
    there as well, so the check is the second of two."""
    cluster = running()
    monkeypatch.setattr(Followers, "enough_to_acknowledge", property(lambda self: False))
    cluster.until(
        lambda: {each.last_error for each in cluster.producers} == {ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND}
    )
    before = acknowledged(cluster)  # answers that had left already came before these
    cluster.run(300)
    assert acknowledged(cluster) == before
    monkeypatch.undo()
    cluster.settle()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_follower_whose_sync_failed_keeps_what_its_leader_counts_on(seed: int) -> None:
    """With page-cache durability it has told of all that its log holds, whatever high watermark it knows."""
    cluster = HandCluster(seed)
    cluster.start()
    cluster.run(300)
    cluster.produce()
    agenda = cluster.world.agenda
    while replica(cluster, 2).log.log_end_offset == 0:
        agenda.run_next(agenda.clock.now_us + 1_000_000)
    cluster.world.network.cut_path("node-1", "node-2")
    cluster.until(lambda: replica(cluster, 1).log.high_watermark > 0)
    assert replica(cluster, 2).log.high_watermark == 0
    life, node = cluster.hosts[2].life, cluster.node(2)
    assert life is not None
    replica(cluster, 2).log.pending_sync()
    life.enter(node.failures.sync_failed, replica(cluster, 2), "an fsync that failed")
    assert replica(cluster, 2).log.log_end_offset > 0
    cluster.kill(2)
    cluster.world.network.mend()
    cluster.run(1_000)
    cluster.settle()


def numbered(sequence: int) -> ProduceRequest:
    """A record of an idempotent producer."""
    batch = encode_batch([(b"k", b"%d" % sequence)], 0, producer_id=7, producer_epoch=0, base_sequence=sequence)
    return ProduceRequest(None, -1, 5_000, [TopicProduceData("", TOPIC_ID, [PartitionProduceData(0, batch)])])


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_sent_behind_a_batch_that_too_few_replicas_could_take_waits_for_it(seed: int) -> None:
    """A new producer may begin with any sequence: it is remembered that it began with that one."""
    cluster = AskedCluster(seed)

    def said(sequence: int) -> ErrorCode:
        return ErrorCode(cluster.ask(1, numbered(sequence)).responses[0].partition_responses[0].error_code)

    for node_id in (2, 3):
        cluster.kill(node_id)
    cluster.until(lambda: not replica(cluster, 1).has_enough_replicas)
    assert said(0) is ErrorCode.NOT_ENOUGH_REPLICAS
    cluster.begin(2)
    cluster.until(lambda: replica(cluster, 1).has_enough_replicas)
    assert said(1) is ErrorCode.KAFKA_STORAGE_ERROR
    assert [said(0), said(1)] == [ErrorCode.NONE, ErrorCode.NONE]
    cluster.settle()


EPOCH_AT, LAST_BYTE = 15, -1
"""Where a batch has its leader epoch, which no checksum covers, and where what one covers."""


def spoilt(patch: pytest.MonkeyPatch, at: int) -> list[int]:
    """One bit of what a follower is given is another one, a few times; gives the nodes to which that happened."""
    take, to = Fetching._take, list[int]()

    def spoils(self: Fetching, now: int, fetches: Any, partition: Partition, news: Any) -> None:
        if len(news.records) and len(to) < 5:
            octets = bytearray(news.records)
            octets[at] ^= 1
            to.append(self._environment.node_id)
            news = replace(news, records=memoryview(octets))
        take(self, now, fetches, partition, news)

    patch.setattr(Fetching, "_take", spoils)
    return to


@pytest.mark.parametrize("at", [EPOCH_AT, LAST_BYTE], ids=["of a later epoch", "damaged"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_batch_that_arrives_otherwise_than_it_was_sent_is_not_taken(
    seed: int, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked for again (KAFKA-18723)."""
    cluster = running(seed)
    to = spoilt(monkeypatch, at)
    cluster.until(lambda: len(to) == 5)
    before = acknowledged(cluster)
    cluster.until(lambda: acknowledged(cluster) > before + 20)
    cluster.settle()
