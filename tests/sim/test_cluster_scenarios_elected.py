"""Stories of nodes that elect their controller over a far store: what disks, leases and lost answers do to them.

The checkers look at every step and at every commit, so most of these tests only tell the story.
"""

from collections.abc import Callable
from functools import partial

import pytest

from ottla.broker.partitions.partition import Partition
from ottla.metadata.nodes import NodeState
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.protocol.messages.elect_leaders import ElectLeadersRequest
from ottla.sim.kernel.clock import MS
from ottla.sim.kernel.network import Weather
from ottla.sim.workloads.cluster import TOPIC
from ottla.sim.workloads.elected_cluster import ElectedCluster
from ottla.sim.workloads.replica_checkers import ReplicaChecker

SEEDS = (0, pytest.param(1, marks=pytest.mark.long))
LAG_MS = 2_000
"""replica.lag.time.max.ms of these nodes."""
HEAR_US = 2 * MS
"""What a node that looks for news of the store asks its way for (sim/workloads/following.py)."""


def running(seed: int, *, fsync: bool = False, nodes: int = 3) -> ElectedCluster:
    """Nodes with a leader, producers with acks=all and a reader at work."""
    cluster = ElectedCluster(seed, fsync=fsync, nodes=nodes)
    cluster.start()
    cluster.produce(idempotent=True)
    cluster.produce()
    cluster.read()
    cluster.commit_offsets("group")
    for client in cluster.clients:
        client.pace_us = 10 * MS
    cluster.until(lambda: acknowledged(cluster) > 20)
    return cluster


def acknowledged(cluster: ElectedCluster) -> int:
    return sum(each.acknowledged_count for each in cluster.producers)


def led(cluster: ElectedCluster) -> int:
    leader = cluster.leader()
    assert leader is not None
    return leader


def replica(cluster: ElectedCluster, node_id: int) -> Partition:
    return cluster.node(node_id).replicas.by_name[TOPIC].partitions[0]


def more_is_acknowledged(cluster: ElectedCluster, count: int = 20) -> Callable[[], bool]:
    before = acknowledged(cluster)
    return lambda: acknowledged(cluster) > before + count


# ---- disks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_a_leader_whose_disk_is_full_is_followed_by_another(seed: int) -> None:
    """Kafka takes its log directory offline; here the node's row says which of its logs take nothing (KIP-858)."""
    cluster = running(seed)
    first = led(cluster)
    disk = cluster.hosts[first].disk
    disk.capacity = disk.used
    cluster.until(lambda: cluster.leader() not in (first, None), 3_000)
    cluster.until(more_is_acknowledged(cluster))
    assert first not in cluster.isr(), "it takes nothing, so nobody waits for it"
    disk.capacity = None
    cluster.until(lambda: first in cluster.isr())
    cluster.settle()


@pytest.mark.parametrize("seed", SEEDS)
def test_nobody_waits_for_a_follower_whose_disk_is_full(seed: int) -> None:
    """It leaves the in-sync replicas, and that it was caught up a moment ago holds no high watermark back."""
    cluster = running(seed)
    first = led(cluster)
    full = next(node_id for node_id in cluster.isr() if node_id != first)
    disk = cluster.hosts[full].disk
    disk.capacity = disk.used
    cluster.until(lambda: full not in cluster.isr(), LAG_MS // 4)
    cluster.until(more_is_acknowledged(cluster), LAG_MS // 2)
    disk.capacity = None
    cluster.until(lambda: full in cluster.isr())
    cluster.settle()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_leader_whose_disk_is_full_answers_no_reader_before_it_knows_who_leads(seed: int) -> None:
    """It has said, or is saying, that others shall lead: Kafka's broker takes the log offline before it says so."""
    cluster = running(seed)
    first = led(cluster)
    for _ in range(8):
        cluster.read().pace_us = 10 * MS
    disk = cluster.hosts[first].disk
    disk.capacity = disk.used
    cluster.ways[first].latency = partial(latency, 600 * MS, 600 * MS)  # type: ignore[method-assign]
    cluster.until(lambda: cluster.leader() not in (first, None), 3_000)
    cluster.until(more_is_acknowledged(cluster))
    disk.capacity = None
    cluster.run(1_000)
    del cluster.ways[first].latency
    cluster.settle()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_leader_whose_disk_is_full_answers_no_reader_where_who_may_lead_is_down(seed: int) -> None:
    """They come back and one leads, before it hears of either: Kafka's broker has taken the log offline."""
    cluster = running(seed, nodes=5)
    first = led_by_no_controller(cluster)
    others = [node_id for node_id in cluster.image.topics[TOPIC].partitions[0].replicas if node_id != first]
    for node_id in others:
        cluster.kill(node_id)
    cluster.until(lambda: cluster.isr() == (first,))
    disk = cluster.hosts[first].disk
    disk.capacity = disk.used
    cluster.produce(acks=1)
    place = cluster.image.topics[TOPIC].id, 0
    cluster.until(lambda: place in cluster.image.nodes[str(first)].offline)
    for _ in range(24):
        cluster.read().pace_us = 10 * MS
    cluster.run(200)
    assert cluster.leader() == first
    looks: list[int] = []

    def slow(at_most_us: int) -> int:
        looks.append(at_most_us)
        return latency(600 * MS, 600 * MS, at_most_us)

    cluster.ways[first].latency = slow  # type: ignore[method-assign]
    cluster.until(lambda: HEAR_US in looks)  # it has looked who is there, and will hear that nobody else is
    for node_id in others:
        cluster.begin(node_id)
    cluster.until(lambda: cluster.leader() in others)
    for _ in range(4):
        cluster.produce().pace_us = 5 * MS
    cluster.until(more_is_acknowledged(cluster))
    cluster.run(1_000)
    disk.capacity = None
    del cluster.ways[first].latency
    cluster.settle()


def led_by_no_controller(cluster: ElectedCluster) -> int:
    """The leader, once that is not the controller too."""
    while cluster.node(led(cluster)).members.is_controller:
        first = led(cluster)
        cluster.kill(first)
        cluster.until(lambda: cluster.leader() not in (first, None))  # noqa: B023
        cluster.begin(first)
        cluster.until(lambda: len(cluster.isr()) == 3)
    cluster.until(more_is_acknowledged(cluster))
    return led(cluster)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_full_disk_of_the_last_in_sync_replica_leaves_it_the_leader(seed: int) -> None:
    """What it holds can be read, and it goes on when there is room."""
    cluster = running(seed)
    first = led(cluster)
    for node_id in cluster.hosts:
        if node_id != first:
            cluster.kill(node_id)
    cluster.until(lambda: cluster.isr() == (first,))
    disk = cluster.hosts[first].disk
    disk.capacity = disk.used
    cluster.run(1_000)
    assert cluster.leader() == first
    disk.capacity = None
    cluster.settle()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_leader_whose_fsync_fails_is_followed_by_another(seed: int) -> None:
    """Its log stays shut: followers may have what it would have to cut."""
    cluster = running(seed, fsync=True)
    first = led(cluster)
    cluster.hosts[first].disk.sync_failures = 1.0
    cluster.until(lambda: cluster.leader() not in (first, None), 3_000)
    cluster.until(more_is_acknowledged(cluster))
    cluster.hosts[first].disk.sync_failures = 0.0
    cluster.kill(first)
    cluster.settle()


@pytest.mark.parametrize("seed", SEEDS)
def test_with_fsync_nothing_acknowledged_is_lost_where_every_machine_goes_off(seed: int) -> None:
    """Each in-sync replica has it on its disk, whatever its disk has not taken yet."""
    cluster = running(seed, fsync=True)
    for node_id in (1, 2, 3):
        cluster.hosts[node_id].disk_latency_max_us = (node_id * 100) * MS
    cluster.until(more_is_acknowledged(cluster, 5))
    for node_id in cluster.up:
        cluster.kill(node_id, power_cut=True)
    cluster.settle()


def last_in_sync_loses_its_end(cluster: ElectedCluster) -> tuple[int, list[int]]:
    """The leader, whose machine has gone off, and the other replicas, which were killed before."""
    first, *others = cluster.image.topics[TOPIC].partitions[0].replicas
    for node_id in others:
        cluster.kill(node_id)
    cluster.until(lambda: cluster.isr() == (first,))
    cluster.kill(first, power_cut=True)
    return first, others


def must_be_led_by_an_eligible_one(cluster: ElectedCluster, others: list[int]) -> None:
    """The one that has lost its end is there again; it does not lead, and one of the others does once it is back. Both
    have to be back if the power cut took away what the first had seen of the store, which then may be an older one."""
    cluster.run(500)
    assert cluster.leader() is None, "it has lost bytes, and who is eligible is down"
    rows = [row for name, row in cluster.image.nodes.items() if int(name) not in others]
    for other in others if any(not row.knows_store for row in rows) else others[:1]:
        cluster.begin(other)
    cluster.until(lambda: cluster.leader() in others)
    cluster.settle()


@pytest.mark.parametrize("seed", SEEDS)
def test_the_last_in_sync_replica_loses_its_end_and_an_eligible_one_leads(seed: int) -> None:
    """It must not lead, and cut everybody else (KIP-966)."""
    cluster = running(seed)
    first, others = last_in_sync_loses_its_end(cluster)
    cluster.run(200)
    cluster.begin(first)
    must_be_led_by_an_eligible_one(cluster, others)


def bury_before_it_registers(cluster: ElectedCluster, node_id: int) -> None:
    cluster.kill(node_id)


def stop_before_it_registers(cluster: ElectedCluster, node_id: int) -> None:
    cluster.leave(node_id)


def bury_before_the_controller_knows(cluster: ElectedCluster, node_id: int) -> None:
    life = cluster.following.incarnation_of(node_id)
    cluster.until(lambda: cluster.image.nodes[str(node_id)].incarnation == life)
    assert cluster.image.nodes[str(node_id)].state is NodeState.STARTING
    cluster.kill(node_id)


def stop_before_the_controller_knows(cluster: ElectedCluster, node_id: int) -> None:
    life = cluster.following.incarnation_of(node_id)
    cluster.until(lambda: cluster.image.nodes[str(node_id)].incarnation == life)
    cluster.leave(node_id)
    cluster.until(lambda: not cluster.hosts[node_id].up)


@pytest.mark.parametrize(
    "end",
    [
        bury_before_it_registers,
        stop_before_it_registers,
        bury_before_the_controller_knows,
        stop_before_the_controller_knows,
    ],
)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_life_that_found_bytes_lost_and_told_nobody_leaves_it_to_the_next(
    seed: int, end: Callable[[ElectedCluster, int], None]
) -> None:
    """The next one finds the machine as the last one left it, and must not take the logs for whole."""
    cluster = running(seed)
    first, others = last_in_sync_loses_its_end(cluster)
    cluster.begin(first)
    end(cluster, first)
    cluster.begin(first)
    must_be_led_by_an_eligible_one(cluster, others)


# ---- controllers and the store -------------------------------------------------------------------------------------


def controller_of(cluster: ElectedCluster) -> int:
    controller = cluster.image.controller
    assert controller is not None
    return controller.node_id


def place_led_elsewhere(cluster: ElectedCluster) -> int:
    """A partition whose leader is not the controller."""
    for index in range(cluster.partitions):
        if cluster.leader(index) != controller_of(cluster):
            return index
    raise AssertionError("the controller leads everything")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_controller_that_stood_still_writes_nothing_behind_its_successor(seed: int) -> None:
    """KAFKA-6082."""
    cluster = running(seed)
    first = controller_of(cluster)
    life = cluster.hosts[first].life
    assert life is not None
    life.pause()
    cluster.until(lambda: controller_of(cluster) != first)
    cluster.kill(next(node_id for node_id in cluster.up if node_id not in (first, controller_of(cluster))))
    life.resume()
    cluster.run(500)
    cluster.settle()


@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_controller_sent_before_its_successor_came_is_not_written_behind_it(seed: int) -> None:
    """The claim guards rows too that the successor has not touched."""
    cluster = running(seed)
    first = controller_of(cluster)
    life, way = cluster.hosts[first].life, cluster.ways[first]
    assert life is not None
    way.latency = lambda at_most_us: 3_000 * MS  # type: ignore[method-assign]
    cluster.ask(first, CreateTopicsRequest(topics=[CreatableTopic("late", 1, 3)]))
    life.pause()
    cluster.until(lambda: controller_of(cluster) != first)
    cluster.run(2_000)
    del way.latency
    life.resume()
    assert "late" not in cluster.image.topics
    cluster.settle()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_commit_whose_answer_is_lost_counts_once(seed: int) -> None:
    """Of elections and in-sync sets alike: done or not, the store is read again (KAFKA-1188)."""
    cluster = running(seed)
    for way in cluster.ways.values():
        way.lost_answers = 0.7
    for _ in range(3):
        dying = led(cluster)
        cluster.kill(dying)
        cluster.until(lambda dying=dying: cluster.leader() not in (dying, None))  # type: ignore[misc]
        cluster.until(more_is_acknowledged(cluster, 5))
        cluster.begin(dying)
        cluster.until(lambda: sorted(cluster.isr()) == [1, 2, 3])
    cluster.settle()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_replica_joins_by_what_its_present_life_has(seed: int) -> None:
    """What the last life fetched says nothing of the next one, which has lost its end (KIP-903, KAFKA-14139)."""
    cluster = ElectedCluster(seed, partitions=3)
    cluster.start()
    index = place_led_elsewhere(cluster)
    cluster.produce(index)
    leader, controller = cluster.leader(index), controller_of(cluster)
    assert leader is not None
    (joiner,) = {1, 2, 3} - {leader, controller}
    cluster.until(lambda: acknowledged(cluster) > 20)
    cluster.ways[joiner].is_cut = True
    cluster.until(lambda: joiner not in cluster.isr(index))
    late = Weather(latency_min_us=400 * MS, latency_max_us=401 * MS)
    cluster.world.network.weathers[f"node-{leader}", f"node-{controller}"] = late
    cluster.ways[joiner].heal()
    followers = cluster.node(leader).replicas.by_name[TOPIC].partitions[index].followers
    assert followers is not None
    cluster.until(lambda: followers.proposal is not None and joiner in dict(followers.proposal.isr))
    cluster.world.network.cut_path(f"node-{leader}", f"node-{joiner}")
    cluster.kill(joiner, power_cut=True)
    cluster.begin(joiner)
    cluster.run(1_000)
    assert joiner not in cluster.isr(index)
    cluster.settle()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_topic_that_was_made_anew_has_nothing_of_the_old_one(seed: int) -> None:
    """A replica slept meanwhile, with the old one on its disk."""
    cluster = running(seed)
    for client in cluster.clients:
        client.running = False
        client.hang_up()
    cluster.producers.clear()
    cluster.readers.clear()
    sleeper = next(node_id for node_id in cluster.up if node_id != controller_of(cluster))
    cluster.kill(sleeper)
    old = cluster.topic_id(TOPIC)
    cluster.ask(controller_of(cluster), DeleteTopicsRequest(topics=[DeleteTopicState(TOPIC)]))
    cluster.until(lambda: TOPIC not in cluster.image.topics)
    cluster.run(100)
    cluster.ask(controller_of(cluster), CreateTopicsRequest(topics=[CreatableTopic(TOPIC, 1, 2)]))
    cluster.until(lambda: TOPIC in cluster.image.topics)
    assert cluster.topic_id(TOPIC) != old
    cluster.produce()
    cluster.read()
    cluster.until(lambda: acknowledged(cluster) > 5)
    cluster.begin(sleeper)
    cluster.settle()


def ms_without_acknowledgement(cluster: ElectedCluster, ms: int) -> int:
    """Run for so long: the longest time in it in which nothing was acknowledged."""
    longest = since = 0
    before = acknowledged(cluster)
    for _ in range(ms):
        cluster.run(1)
        since = since + 1 if acknowledged(cluster) == before else 0
        before, longest = acknowledged(cluster), max(longest, since)
    return longest


def led_by_all(seed: int) -> tuple[ElectedCluster, int]:
    """Nodes that each lead something, so that followers' fetches wait at all of them, and who leads partition 0, which
    producers write to."""
    settings = {"replica.fetch.wait.max.ms": "2000", "replica.lag.time.max.ms": "10000"}
    cluster = ElectedCluster(seed, partitions=6, settings=settings)
    cluster.start()
    for _ in range(4):
        cluster.produce()
    cluster.until(more_is_acknowledged(cluster))
    cluster.run(500)
    assert {cluster.leader(index) for index in range(6)} == {1, 2, 3}
    return cluster, led(cluster)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_leader_that_stops_cleanly_is_missed_for_a_moment_only(seed: int) -> None:
    """The third replica's fetch waits at the new leader, and was sent before that one led: it is answered at once."""
    cluster, first = led_by_all(seed)
    life, membership = cluster.hosts[first].life, cluster.node(first).membership
    assert life is not None
    assert membership is not None
    life.enter(membership.leave)
    assert ms_without_acknowledgement(cluster, 600) < 250
    assert led(cluster) != first
    cluster.kill(first)
    cluster.settle()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_leader_that_is_killed_is_missed_for_a_moment_only(seed: int) -> None:
    cluster, first = led_by_all(seed)
    cluster.kill(first)
    assert ms_without_acknowledgement(cluster, 600) < 250
    assert led(cluster) != first
    cluster.settle()


# ---- leases, pauses and coordinators -------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("who", ["leader", "controller", "both"])
def test_who_stands_still_beyond_its_lease_answers_nothing_old(seed: int, who: str) -> None:
    """Others lead meanwhile; readers and committers hold what it says then against what they know (KIP-207)."""
    cluster = running(seed)
    victims = {"leader": [led(cluster)], "controller": [controller_of(cluster)]}
    victims["both"] = [*victims["leader"], *victims["controller"]]
    lives = [life for node_id in dict.fromkeys(victims[who]) if (life := cluster.hosts[node_id].life) is not None]
    before = led(cluster)
    for life in lives:
        life.pause()
    cluster.run(2_500)
    for life in lives:
        life.resume()
    cluster.run(300)
    assert who == "controller" or cluster.leader() != before
    cluster.settle()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_leader_stops_when_everybody_knows_who_leads_instead(seed: int) -> None:
    """Else who has not heard sends clients to a node that is gone, or refuses what it is to lead."""
    cluster = running(seed)
    first = led(cluster)
    for node_id in cluster.up:
        if node_id != first:
            cluster.ways[node_id].latency_max_us = 400 * MS
    cluster.leave(first)
    cluster.until(lambda: cluster.leader() != first)
    assert cluster.hosts[first].up, "it goes on until the others have heard"
    cluster.until(lambda: not cluster.hosts[first].up, 4_000)
    cluster.until(more_is_acknowledged(cluster))
    cluster.settle()


def latency(to_commit_us: int, to_hear_us: int, at_most_us: int) -> int:
    """How long a way to the store takes, for who hears of it and for who asks."""
    return 50 + (to_hear_us if at_most_us == HEAR_US else to_commit_us)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_node_that_leaves_while_it_is_being_elected_is_not(seed: int) -> None:
    """What the controller sent before it could know is not written behind the node's word; else the node stops, as all
    have heard of that, and is the leader nevertheless."""
    cluster = running(seed)
    while controller_of(cluster) == (first := cluster.image.topics[TOPIC].partitions[0].replicas[0]):
        cluster.kill(first)
        cluster.until(lambda: controller_of(cluster) != first)
        cluster.begin(first)
    controller = controller_of(cluster)
    (third,) = {1, 2, 3} - {first, controller}
    if cluster.leader() == first:
        cluster.kill(first)
        cluster.until(lambda: cluster.leader() != first)
        cluster.begin(first)
    cluster.until(lambda: len(cluster.isr()) == 3)
    late = {controller: (300, 0), third: (0, 350), first: (0, 500)}
    for node_id, (to_commit, to_hear) in late.items():
        cluster.ways[node_id].latency = partial(latency, to_commit * MS, to_hear * MS)  # type: ignore[method-assign]
    cluster.ask(controller, ElectLeadersRequest(0, None))
    cluster.leave(first)
    cluster.until(lambda: not cluster.hosts[first].up, 4_000)
    for node_id in late:
        del cluster.ways[node_id].latency
    cluster.until(more_is_acknowledged(cluster))
    cluster.settle()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_node_that_leaves_waits_also_for_who_takes_over_late(seed: int) -> None:
    """Nobody could lead in its place at first; then somebody could, and does not know it yet."""
    cluster = ElectedCluster(seed, replicas=2, partitions=6)
    cluster.start()
    first = controller_of(cluster)
    index = next(each for each in range(6) if cluster.leader(each) == first)
    second = next(each for each in cluster.image.topics[TOPIC].partitions[index].replicas if each != first)
    (third,) = {1, 2, 3} - {first, second}
    cluster.kill(second)
    cluster.until(lambda: cluster.isr(index) == (first,))
    life = cluster.hosts[third].life
    assert life is not None
    life.pause()
    cluster.leave(first)
    cluster.until(lambda: cluster.image.nodes[str(first)].state is NodeState.LEAVING)
    cluster.run(30)
    cluster.begin(second)
    incarnation = cluster.following.incarnation_of(second)
    cluster.until(lambda: cluster.image.nodes[str(second)].incarnation == incarnation)
    cluster.ways[second].latency = partial(latency, 0, 1_200 * MS)  # type: ignore[method-assign]
    cluster.until(lambda: cluster.leader(index) == second)
    assert cluster.hosts[first].up
    life.resume()
    cluster.until(lambda: not cluster.hosts[first].up, 4_000)
    del cluster.ways[second].latency
    cluster.settle()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_leader_whose_fsync_fails_while_it_stops_is_followed_by_another(seed: int) -> None:
    """It has nothing to say any more of the logs that take nothing: it leaves."""
    cluster = running(seed, fsync=True)
    first = led(cluster)
    cluster.hosts[first].disk.sync_failures = 1.0
    cluster.leave(first)
    cluster.until(lambda: not cluster.hosts[first].up, 6_000)
    cluster.until(lambda: cluster.leader() not in (first, None), 3_000)
    cluster.hosts[first].disk.sync_failures = 0.0
    cluster.until(more_is_acknowledged(cluster))
    cluster.settle()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_leader_that_does_not_reach_the_store_answers_no_reader(seed: int) -> None:
    """Clients reach it, and so do its followers until another leads: it counts its own lease (self-fencing)."""
    cluster = running(seed)
    first = led(cluster)
    for _ in range(4):
        cluster.read().pace_us = 10 * MS
    cluster.ways[first].is_cut = True
    cluster.until(lambda: cluster.leader() != first)
    cluster.until(more_is_acknowledged(cluster))
    cluster.run(2_000)
    cluster.settle()


@pytest.mark.parametrize("seed", SEEDS)
def test_clocks_that_leap_move_nothing(seed: int) -> None:
    """Leases and lags go by clocks that nobody sets."""
    cluster = running(seed)
    epoch = cluster.image.topics[TOPIC].partitions[0].leader_epoch
    for by_ms, host in zip((3_600_000, -3_600_000, 60_000), cluster.hosts.values(), strict=True):
        host.clock.wall_off_ms += by_ms
    cluster.until(more_is_acknowledged(cluster))
    cluster.run(3_000)
    assert cluster.image.topics[TOPIC].partitions[0].leader_epoch == epoch
    assert sorted(cluster.isr()) == [1, 2, 3]
    cluster.settle()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_coordinator_moves_while_it_loads_and_comes_back(seed: int) -> None:
    """What was committed is never older again, whoever coordinates, and an old coordinator says nothing (KAFKA-10614,
    18137)."""
    cluster = running(seed)
    for _ in range(4):
        placed = cluster.image.partition(*cluster.others[0].place)
        assert placed is not None
        life = cluster.hosts[placed.leader].life
        if life is not None and cluster.rng.random() < 0.5:
            life.pause()
            cluster.run(2_300)
            life.resume()
        elif life is not None:
            cluster.kill(placed.leader)
            cluster.run(100)
            cluster.begin(placed.leader)
        cluster.run(400)
    cluster.settle()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_topic_is_made_while_a_node_is_down_that_has_to_have_it(seed: int) -> None:
    cluster = running(seed)
    down = next(node_id for node_id in cluster.hosts if node_id != led(cluster))
    cluster.kill(down)
    cluster.until(lambda: cluster.image.nodes[str(down)].state is NodeState.FENCED)
    cluster.checkers.append(ReplicaChecker("new"))
    cluster.ask(led(cluster), CreateTopicsRequest(topics=[CreatableTopic("new", 3, 3)]))
    cluster.until(lambda: "new" in cluster.image.topics)
    for placed in cluster.image.topics["new"].partitions:
        assert placed.replicas == (*placed.isr, down)
    cluster.begin(down)
    cluster.until(cluster.is_whole)
    cluster.settle()
