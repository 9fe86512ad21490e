"""Readers at replicas that follow: they see what is committed, whoever dies (KIP-392)."""

from typing import Any

import pytest

from ottla.broker.api import fetch_reading
from ottla.log.answers import Isolation
from ottla.sim.kernel.trace import InvariantError
from ottla.sim.workloads.elected_cluster import ElectedCluster


def tell(seed: int) -> None:
    """Leaders die one after the other, and one is cut off with what only it has."""
    cluster = ElectedCluster(seed, by_locks=False)
    cluster.start()
    for acks in (-1, -1, 1):
        cluster.produce(acks=acks)
    readers = [cluster.read(nearby=True) for _ in range(3)]
    for _ in range(3):
        cluster.run(500)
        leader = cluster.leader()
        assert leader is not None
        for other in cluster.hosts.values():
            cluster.world.network.cut_path(other.name, cluster.hosts[leader].name)
        cluster.run(300)
        cluster.kill(leader)
        cluster.world.network.mend()
        cluster.until(lambda gone=leader: cluster.leader() not in (gone, None))
        cluster.begin(leader)
    cluster.settle()
    assert len({reader.position for reader in readers}) == 1 < readers[0].position


def test_readers_at_any_replica_see_what_is_committed() -> None:
    tell(1)


def test_a_replica_that_serves_what_is_not_committed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = fetch_reading.read_one

    def wrong(node: Any, fetch: Any, asked: Any, left: int, first: bool) -> Any:
        partition = node.replicas.get(asked.topic, asked.index)
        isolation = fetch.isolation
        if partition is not None and not partition.leads and fetch.replica_id < 0:
            fetch.isolation = Isolation.LOG_END
        answer = right(node, fetch, asked, left, first)
        fetch.isolation = isolation
        return answer

    monkeypatch.setattr(fetch_reading, "read_one", wrong)
    with pytest.raises(InvariantError, match="consume"):
        tell(0)
