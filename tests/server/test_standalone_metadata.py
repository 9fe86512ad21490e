"""A node that is started on metadata that is not its own: refused, before it knows nothing of its topics."""

import random
from pathlib import Path

import pytest

from ottla.broker.upkeep.identity import StartRefusedError, identify
from ottla.log.files import DiskFiles
from ottla.metadata.memory import MemoryStore
from ottla.server.listeners import ServeRefusedError
from ottla.server.standalone_metadata import PLACE_FILE, note_shared, open_own, shared_place
from ottla.testing import EmbeddedBroker, EmbeddedCluster
from tests.server.test_metadata_store import produce


def test_what_nodes_share_is_nothing_for_a_node_alone(tmp_path: Path) -> None:
    with EmbeddedCluster(nodes=1, directory=tmp_path) as cluster:
        assert produce(cluster, "t") == 0
    own = tmp_path / "1"
    place = f"{tmp_path}/metadata.sqlite"
    assert shared_place(str(own)) == place
    with pytest.raises(
        ServeRefusedError, match=f"is that of a node in a cluster: start it with --metadata {place}. Where"
    ):
        EmbeddedBroker(directory=own).start()
    with pytest.raises(ServeRefusedError, match=f"^{place} is the metadata of a cluster: start a node of it with"):
        EmbeddedBroker(directory=tmp_path).start()
    with EmbeddedCluster(nodes=1, directory=tmp_path):
        pass
    (own / PLACE_FILE).unlink()
    with EmbeddedBroker(directory=own) as alone:
        assert produce(alone, "t") == 1


def test_where_the_metadata_is_is_noted_anew(tmp_path: Path) -> None:
    note_shared(str(tmp_path), "/a/metadata.sqlite")
    note_shared(str(tmp_path), "zookeeper://zk1:2181/ottla")
    assert shared_place(str(tmp_path)) == "zookeeper://zk1:2181/ottla"
    with pytest.raises(ServeRefusedError, match="--metadata zookeeper://zk1:2181/ottla"):
        open_own(str(tmp_path))


@pytest.mark.parametrize("damage", [b"", b"/a/meta\xff\xfedata.sqlite\n"])
def test_a_note_that_is_damaged_still_says_that_the_node_is_not_alone(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / PLACE_FILE).write_bytes(damage)
    with pytest.raises(ServeRefusedError, match="is that of a node in a cluster"):
        open_own(str(tmp_path))
    note_shared(str(tmp_path), "/a/metadata.sqlite")
    assert shared_place(str(tmp_path)) == "/a/metadata.sqlite"


def test_an_empty_store_of_a_cluster_does_not_get_what_another_one_knew(tmp_path: Path) -> None:
    files, own = DiskFiles(), str(tmp_path)
    told = identify(files, own, MemoryStore(), 1, random.Random(1), alone=True)
    with pytest.raises(
        StartRefusedError, match=f"belongs to cluster {told}, and the metadata store in memory is empty"
    ):
        identify(files, own, MemoryStore(), 1, random.Random(2), alone=False)
    assert identify(files, own, MemoryStore(), 1, random.Random(2), alone=True) == told
