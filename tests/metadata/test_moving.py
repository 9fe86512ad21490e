"""Moving a metadata store into ZooKeeper: whole or not at all, whatever interrupts it, and never over another one."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from ottla.metadata.memory import MemoryStore
from ottla.metadata.store import ABSENT, CommitUnknownError, ConflictError, Delete, Put, StoreError, Versioned
from ottla.metadata.zookeeper import moving
from ottla.metadata.zookeeper.ensemble import ensemble_of
from ottla.metadata.zookeeper.moving import move
from ottla.metadata.zookeeper.session import Session, Set
from tests.harness.zookeepers import ZooKeepers, fresh, opened


@pytest.fixture
def source() -> MemoryStore:
    """A store of which some rows are older than others, and some generations wrote what is gone."""
    store = MemoryStore()
    store.commit([Put("cluster/id", b"x-cluster", ABSENT), Put("topic/gone", b"")])
    for number in range(40):
        store.commit([Put(f"topic/{number}", b"%d" % number * number)])
    store.commit([Put("topic/7", b"again")])
    return store


@pytest.fixture
def session(zookeeper: ZooKeepers) -> Iterator[Session]:
    session = Session(ensemble_of(fresh(zookeeper)), 2000)
    session.open()
    yield session
    session.close()


def rows_of(store: MemoryStore) -> dict[str, Versioned]:
    return dict(store.list(""))


def moved(source: MemoryStore, session: Session) -> bool:
    return move(rows_of(source), source.generation, session, lambda: True)


def test_rows_keep_their_versions_and_the_generation_goes_on(source: MemoryStore, session: Session) -> None:
    assert moved(source, session)
    with closing(opened(str(session.ensemble))) as store:
        assert dict(store.list("")) == rows_of(source)
        assert store.generation == source.generation
        assert store.changes_since(source.generation) == source.changes_since(source.generation)
        assert store.changes_since(source.generation - 1) is None
        with pytest.raises(ConflictError):
            store.commit([Put("topic/7", b"", 9)])
        assert store.commit([Put("topic/7", b"later", source.generation)]) == source.generation + 1
        assert not moved(source, session)  # they were there, and are used: nothing is written over
        assert store.get("topic/7") == Versioned(b"later", source.generation + 1)


def test_wherever_it_is_interrupted_it_goes_on_and_no_node_starts_before(
    source: MemoryStore, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving, "BYTES_MAX", 2000)  # many transactions
    carry_out, left = session.carry_out, 0

    def some(operations: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise CommitUnknownError("interrupted")
        carry_out(operations)

    monkeypatch.setattr(session, "carry_out", some)
    steps = 0
    while True:
        left = 1 + steps % 3
        steps += 1
        try:
            assert moved(source, session)
            break
        except CommitUnknownError:
            with pytest.raises(StoreError, match="is not all there: end that first, with the same `ottla cluster move"):
                opened(str(session.ensemble))
        if steps == 3:
            source.commit([Put("topic/late", b"x")])  # the node ran once more in between
    assert steps > 4
    with closing(opened(str(session.ensemble))) as store:
        assert (dict(store.list("")), store.generation) == (rows_of(source), source.generation)


def test_what_is_used_after_it_was_moved_is_moved_anew_unless_both_are(source: MemoryStore, session: Session) -> None:
    """Who interrupts a move right before its source is told of it may start a node there."""
    assert moved(source, session)
    assert not moved(source, session)
    source.commit([Put("topic/late", b"x"), Delete("topic/0")])
    assert moved(source, session)
    with closing(opened(str(session.ensemble))) as store:
        assert (dict(store.list("")), store.generation) == (rows_of(source), source.generation)
        store.commit([Put("topic/there", b"y")])
        assert not moved(source, session)
        source.commit([Put("topic/here", b"z")])
        with pytest.raises(StoreError, match="each lacks what the other has"):
            moved(source, session)
        assert store.get("topic/there") is not None


def test_nothing_is_moved_over_another_cluster(source: MemoryStore, session: Session) -> None:
    other = MemoryStore()
    other.commit([Put("cluster/id", b"y-cluster")])
    moved(other, session)
    with pytest.raises(StoreError, match=r"^the metadata of another cluster is at zookeeper://.*: name another path$"):
        moved(source, session)
    root = session.ensemble.root
    with closing(opened(str(session.ensemble))) as store:
        store.session.make([f"{root}/moving"])
        store.session.carry_out([Set(f"{root}/moving", b"y-cluster 1")])
    with pytest.raises(StoreError, match="another cluster is being moved"):
        moved(source, session)


def test_what_somebody_else_writes_meanwhile_stops_it(source: MemoryStore, session: Session) -> None:
    with pytest.raises(StoreError, match="a node has written to the store that is moved meanwhile: stop it"):
        move(rows_of(source), source.generation, session, lambda: False)

    def another_node_begins() -> bool:
        path = f"{session.ensemble.root}/generation"
        session.make([path])
        session.carry_out([Set(path, b"0 1\n")])
        return True

    with pytest.raises(StoreError, match=r"^another program writes to zookeeper://.*: stop it, and start again$"):
        move(rows_of(source), source.generation, session, another_node_begins)
    assert moved(source, session)


def test_rows_that_are_not_as_they_were_written_are_told(
    source: MemoryStore, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = moving._write

    def and_damage(session: Session, directory: str, writes: Any) -> None:
        write(session, directory, writes)
        session.carry_out([Set(f"{directory}/topic/3", b"damaged")])

    monkeypatch.setattr(moving, "_write", and_damage)
    with pytest.raises(StoreError, match=r"^1 rows at zookeeper://.* moved there, topic/3 among them: another program"):
        moved(source, session)
