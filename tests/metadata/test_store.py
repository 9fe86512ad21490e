"""The stores against each other, and what a commit promises."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from ottla.metadata import store as store_module
from ottla.metadata.memory import MemoryStore
from ottla.metadata.producer_ids import BLOCK, ProducerIds
from ottla.metadata.sqlite import SqliteStore
from ottla.metadata.store import ABSENT, ConflictError, Delete, MetadataStore, Put, StoreError, VersionGuard
from tests.conftest import ON_ZOOKEEPER
from tests.harness.producer_ids import take
from tests.harness.zookeepers import ZooKeepers, fresh, opened

KEYS = st.sampled_from(["topic/a", "topic/a-b", "topic/b", "topic", "config/", "config/é", "config/\U0001f600", "k\0z"])
EXPECTED = st.one_of(st.none(), st.integers(0, 12))
WRITES = st.lists(
    st.one_of(st.builds(Put, KEYS, st.binary(max_size=8), EXPECTED), st.builds(Delete, KEYS, EXPECTED)),
    max_size=4,
    unique_by=lambda write: write.key,
)
GUARDS = st.lists(st.builds(VersionGuard, KEYS, st.integers(0, 12)), max_size=2)


class TwinStores(RuleBasedStateMachine):
    """Every call answers the same from memory and from the store that `opened` opens, failed ones included, and one
    that is opened again has lost nothing."""

    def __init__(self, opened: Callable[[], MetadataStore]) -> None:
        super().__init__()
        self.opened = opened
        self.memory = MemoryStore()
        self.other = opened()

    @rule(writes=WRITES, guards=GUARDS, again=st.integers(1, 3))
    def commit(self, writes: list[Put | Delete], guards: list[VersionGuard], again: int) -> None:
        for _ in range(again):
            assert outcome(self.memory, writes, guards) == outcome(self.other, writes, guards)

    @rule()
    def reopen(self) -> None:
        self.other.close()
        self.other = self.opened()

    @rule(generation=st.integers(-1, 30))
    def changes(self, generation: int) -> None:
        assert self.memory.changes_since(generation) == self.other.changes_since(generation)

    @rule(prefix=st.sampled_from(["", "t", "topic", "topic/", "config/", "é", "config/\U0001f600", "k\0"]))
    def list_prefix(self, prefix: str) -> None:
        assert list(self.memory.list(prefix)) == list(self.other.list(prefix))

    @rule(keys=st.lists(KEYS, min_size=1))
    def get(self, keys: list[str]) -> None:
        assert self.memory.get(keys[0]) == self.other.get(keys[0])
        assert list(self.memory.get_many(keys)) == list(self.other.get_many(keys))

    @invariant()
    def same_generation(self) -> None:
        assert self.memory.generation == self.other.generation

    def teardown(self) -> None:
        self.other.close()


def outcome(store: MetadataStore, writes: list[Put | Delete], guards: list[VersionGuard]) -> object:
    try:
        return store.commit(writes, guards)
    except ConflictError as conflict:
        return conflict.key, conflict.expected, conflict.found


def test_sqlite_and_memory_are_twins(tmp_path: Path) -> None:
    numbers = count()

    def twins() -> TwinStores:
        path = str(tmp_path / f"{next(numbers)}.db")
        return TwinStores(lambda: SqliteStore(path))

    run_state_machine_as_test(
        cast(Any, twins), settings=settings(max_examples=40, stateful_step_count=30, deadline=None)
    )


def test_zookeeper_and_memory_are_twins(zookeeper: ZooKeepers) -> None:
    def twins() -> TwinStores:
        place = fresh(zookeeper)
        return TwinStores(lambda: opened(place))

    run_state_machine_as_test(
        cast(Any, twins), settings=settings(max_examples=8, stateful_step_count=30, deadline=None)
    )


@pytest.fixture(params=["memory", "sqlite", pytest.param("zookeeper", marks=ON_ZOOKEEPER)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MetadataStore]:
    match request.param:
        case "memory":
            made: MetadataStore = MemoryStore()
        case "sqlite":
            made = SqliteStore(str(tmp_path / "metadata.db"))
        case _:
            made = opened(fresh(request.getfixturevalue("zookeeper")))
    yield made
    made.close()


def test_a_guard_on_another_key_stops_the_whole_batch(store: MetadataStore) -> None:
    epoch = store.commit([Put("controller", b"1", ABSENT)])
    store.commit([Put("controller", b"2", epoch)])
    with pytest.raises(ConflictError):
        store.commit([Put("topic/a", b"zombie")], [VersionGuard("controller", epoch)])
    assert store.get("topic/a") is None


def test_a_recreated_key_never_has_an_old_version(store: MetadataStore) -> None:
    first = store.commit([Put("k", b"a", ABSENT)])
    store.commit([Delete("k", first)])
    store.commit([Put("k", b"a", ABSENT)])
    with pytest.raises(ConflictError):
        store.commit([Put("k", b"b", first)])


def test_changes_too_long_ago_say_so(store: MetadataStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[type(store).__module__], "CHANGES_MAX", 3)
    for i in range(5):
        store.commit([Put(f"k{i}", b"")])
    assert store.changes_since(1) is None
    changes = store.changes_since(2)
    assert changes == store_module.Changes(5, ("k2", "k3", "k4"))


def test_two_connections_see_each_other(tmp_path: Path) -> None:
    path = str(tmp_path / "metadata.db")
    one, two = SqliteStore(path), SqliteStore(path)
    version = one.commit([Put("k", b"a", ABSENT)])
    assert two.generation == version
    two.commit([Put("k", b"b", version)])
    with pytest.raises(ConflictError):
        one.commit([Put("k", b"c", version)])


def test_an_unwritable_place_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"can't be opened: unable to open database file"):
        SqliteStore(str(tmp_path / "no" / "metadata.db"))


def test_a_damaged_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "metadata.db").write_bytes(b"not a database at all" * 1000)
    with pytest.raises(StoreError, match="can't be opened"):
        SqliteStore(str(tmp_path / "metadata.db"))


KILLED = """
import sys
from ottla.metadata.sqlite import SqliteStore
from ottla.metadata.store import Put
from tests.harness.producer_ids import take
store = SqliteStore(sys.argv[1])
for i in range(1_000_000):
    print(store.commit([Put("a", str(i).encode()), Put("b", str(i).encode())]), flush=True)
"""


def test_a_returned_commit_survives_kill(tmp_path: Path) -> None:
    path = str(tmp_path / "metadata.db")
    child = subprocess.Popen([sys.executable, "-c", KILLED, path], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    acknowledged = [int(child.stdout.readline()) for _ in range(50)][-1]
    child.send_signal(signal.SIGKILL)
    child.wait()
    store = SqliteStore(path)
    a, b = store.get("a"), store.get("b")
    assert a is not None
    assert a == b
    assert store.generation >= acknowledged
    assert a.version == store.generation


def test_producer_ids_are_never_given_twice(store: MetadataStore) -> None:
    one, two = ProducerIds(0), ProducerIds(0)
    taken = [take(ids, store) for _ in range(BLOCK + 1) for ids in (one, two)]
    taken += [take(ProducerIds(0), store) for _ in range(3)]
    assert len(set(taken)) == len(taken)
    assert min(taken) == 0


def test_a_store_can_leave_out_generations(store: MetadataStore) -> None:
    for i in range(3):
        store.commit([Put(f"k{i}", b"")])
    store.rise(2)
    assert store.commit([Put("a", b"1")]) == 4
    store.rise(100)
    assert store.commit([Put("a", b"2")]) == store.generation == 101
    assert store.commit([Put("b", b"3")]) == 102
    row = store.get("a")
    assert row is not None
    assert row.version == 101
    assert store.changes_since(101) == store_module.Changes(102, ("b",))
    changes = store.changes_since(2)
    assert changes is None or changes == store_module.Changes(102, ("k2", "a", "b"))
