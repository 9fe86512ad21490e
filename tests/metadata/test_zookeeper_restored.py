"""ZooKeeper's data is restored from a backup while nodes run."""

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ottla.metadata.store import CommitUnknownError, Put, StoreError, StoreGoneError
from ottla.metadata.zookeeper.session import Set
from ottla.metadata.zookeeper.store import ZooKeeperStore
from tests.harness.waiting import soon
from tests.harness.zookeepers import ZooKeepers, ZooKeeperServer, fresh, opened


@pytest.fixture
def ensemble() -> Iterator[ZooKeepers]:
    """One of its own, as its data is changed."""
    with ZooKeepers() as servers:
        yield servers


def data_of(server: ZooKeeperServer) -> Path:
    return server.directory / "version-2"


@pytest.mark.slow("tests/metadata/test_zookeeper_restored.py::test_a_generation_that_goes_back_is_an_older_store")
def test_a_session_that_has_seen_newer_transactions_says_so(ensemble: ZooKeepers, tmp_path: Path) -> None:
    """The servers refuse it, for as long as it lives; a new one is at home."""
    (server,) = ensemble.servers
    place = fresh(ensemble)
    with closing(opened(place)) as store:
        for number in range(3):
            store.commit([Put("a", b"%d" % number)])
        server.kill()
        shutil.copytree(data_of(server), tmp_path / "backup")
        server.begin()
        server.wait()
        soon(lambda: committed(store, 20))
        assert store.gone() is None
        server.kill()
        shutil.rmtree(data_of(server))
        shutil.copytree(tmp_path / "backup", data_of(server))
        server.begin()
        server.wait()
        soon(lambda: store.gone() is not None)
        why = store.gone()
        assert why is not None
        assert "is older than what this node has seen" in why
        with closing(opened(place)) as other:
            assert other.generation == 3
            assert other.gone() is None


def committed(store: ZooKeeperStore, commits: int) -> bool:
    try:
        for _ in range(commits):
            store.commit([Put("a", b"")])
    except (StoreError, CommitUnknownError):
        return False
    return True


def test_a_generation_that_goes_back_is_an_older_store(zookeeper: ZooKeepers) -> None:
    place = fresh(zookeeper)
    with closing(opened(place)) as store, closing(opened(place)) as other:
        generations = [store.commit([Put("a", b"")]) for _ in range(3)]
        assert other.generation == generations[-1]
        path = f"{store.session.ensemble.root}/generation"
        store.session.carry_out([Set(path, b"1 1\n")])
        for each in (store, other):
            with pytest.raises(StoreGoneError, match="is at commit 1, and this node has seen 3"):
                _ = each.generation
            why = each.gone()
            assert why is not None
            assert "Start the node again" in why
