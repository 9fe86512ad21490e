"""What goes wrong with a metadata store in ZooKeeper: lost answers, lost sessions, servers that stop, large batches."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.metadata.store import (
    ABSENT,
    CommitUnknownError,
    ConflictError,
    Delete,
    Put,
    StoreDamagedError,
    StoreError,
    Versioned,
    VersionGuard,
)
from ottla.metadata.zookeeper import batches, rows, session
from ottla.metadata.zookeeper.ensemble import ensemble_of
from ottla.metadata.zookeeper.session import Set
from ottla.metadata.zookeeper.store import ZooKeeperStore
from tests.harness.waiting import PATIENCE_S, soon
from tests.harness.wires import Wire
from tests.harness.zookeepers import SESSION_MAX_MS, ZooKeepers, fresh, opened

TIMEOUT_MS = 3000


@contextmanager
def behind(wire: Wire, address: str) -> Iterator[ZooKeeperStore]:
    """The store at this address, reached by that wire."""
    with closing(opened(f"zookeeper://{wire.address}/{address.rpartition('/')[2]}", TIMEOUT_MS)) as store:
        yield store


def raised(call: Callable[[], object]) -> Exception | None:
    try:
        call()
    except Exception as error:
        return error
    return None


def through(store: ZooKeeperStore) -> int:
    """The generation, once the store can be reached."""
    found: list[int] = []
    soon(lambda: raised(lambda: found.append(store.generation)) is None)
    return found[0]


@contextmanager
def once_it_has_read(store: ZooKeeperStore, then: Callable[[], None]) -> Iterator[None]:
    """Do this between the reads of a commit and its transaction."""
    with pytest.MonkeyPatch.context() as patch:
        commit = store._commit
        patch.setattr(store, "_commit", lambda *args: (then(), commit(*args))[1])
        yield


# ---- addresses, paths, values --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "servers", "root"),
    [
        ("zookeeper://a:1,b,c:3/x/y", ("a:1", "b:2181", "c:3"), "/x/y"),
        ("zookeeper://[::1]:9, zk-2.example", ("[::1]:9", "zk-2.example:2181"), "/ottla"),
    ],
)
def test_addresses(text: str, servers: tuple[str, ...], root: str) -> None:
    assert ensemble_of(text) == (servers, root)


@pytest.mark.parametrize("text", ["", "a:b", "a:0", "a:70000", "a,,b", "a b", "a/x/../y", "a/zookeeper/x", "a/ä"])
def test_addresses_that_are_none_are_told(text: str) -> None:
    with pytest.raises(ValueError, match=r"write zookeeper://zk1:2181,zk2:2181,zk3:2181/ottla\.$"):
        ensemble_of(f"zookeeper://{text}")


@settings(max_examples=50)
@given(st.text(st.characters(codec="utf-8"), max_size=8) | st.text("a/.=~%", max_size=8))
def test_every_key_has_a_path_of_its_own(key: str) -> None:
    path = rows.path_of("/r", key)
    group, name = path.removeprefix("/r/").split("/")
    assert rows.key_of(group, name) == key
    assert all(rows.may_hold(group, key[:end]) for end in range(len(key) + 1))
    assert path.isascii()
    assert path.isprintable()
    assert not {group, name} & {"", ".", ".."}


@given(st.binary(max_size=20), st.integers(0, 400), st.integers(1, 1 << 62), st.data())
def test_a_value_with_a_flipped_bit_is_never_believed(
    value: bytes, times: int, generation: int, data: st.DataObject
) -> None:
    content = rows.encoded("k", value * times, generation)
    assert rows.decoded("k", content) == Versioned(value * times, generation)
    flipped = bytearray(content)
    flipped[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(ValueError, match=r"it does not match|its first line|while decompressing"):
        rows.decoded("k", bytes(flipped))
    with pytest.raises(ValueError, match="it does not match"):
        rows.decoded("l", content)


@given(st.lists(st.integers(0, 12), max_size=12))
def test_pieces_are_everything_in_order_and_none_is_too_large(sizes: list[int]) -> None:
    found = list(rows.pieces(sizes, 10))
    assert [place for piece in found for place in piece] == list(range(len(sizes)))
    assert all(piece and (len(piece) == 1 or sum(sizes[place] for place in piece) <= 10) for piece in found)


def test_a_damaged_row_is_a_sentence(zookeeper: ZooKeepers) -> None:
    with closing(opened(fresh(zookeeper))) as store:
        store.commit([Put("topic/a", b"1")])
        root = store.session.ensemble.root
        store.session.carry_out([Set(f"{root}/rows/topic/a", b"edited")])
        with pytest.raises(
            StoreDamagedError, match=r"^the value of topic/a in the metadata store zookeeper://.* is damaged"
        ):
            store.get("topic/a")
        store.session.carry_out([Set(f"{root}/generation", b"what?")])
        with pytest.raises(
            StoreDamagedError, match=rf"^{root}/generation in the metadata store .* is gone or damaged\. Rest"
        ):
            store.commit([Put("topic/b", b"1")])


# ---- many writers, large batches -----------------------------------------------------------------------------------


def test_of_writers_at_once_each_is_through_or_told_of_a_conflict(zookeeper: ZooKeepers) -> None:
    place, each = fresh(zookeeper), 15

    def count_up(_: int) -> list[int]:
        generations: list[int] = []
        with closing(opened(place)) as store:
            while len(generations) < each:
                row = store.get("counter")
                number, version = (int(row.value), row.version) if row else (0, ABSENT)
                try:
                    generations.append(store.commit([Put("counter", b"%d" % (number + 1), version)]))
                except ConflictError:
                    continue
        return generations

    with ThreadPoolExecutor(3) as pool:
        generations = sorted(each for counted in pool.map(count_up, range(3)) for each in counted)
    assert generations == list(range(1, 3 * each + 1))
    with closing(opened(place)) as store:
        assert store.get("counter") == Versioned(b"%d" % (3 * each), 3 * each)


LARGE = [Put(f"topic/{number}", os.urandom(3000)) for number in range(700)]
"""2 MB that no compression makes smaller."""


def test_a_large_batch_is_all_or_nothing(zookeeper: ZooKeepers) -> None:
    place = fresh(zookeeper)
    with closing(opened(place)) as store:
        claim = store.commit([Put("topic/0", b"old"), Put("claim", b"")])
        with pytest.raises(ConflictError):
            store.commit(LARGE, [VersionGuard("claim", claim - 1)])
        assert [key for key, _ in store.list("")] == ["claim", "topic/0"]
        assert store.commit([*LARGE, Delete("claim")], [VersionGuard("claim", claim)]) == claim + 1
        assert store.get("claim") is None
        assert dict(store.list("topic/")) == {put.key: Versioned(put.value, claim + 1) for put in LARGE}
        assert store.changes_since(claim) is not None
        assert store.session.children(f"{store.session.ensemble.root}/batches") == []


def test_a_large_batch_of_a_writer_that_died_is_finished_by_who_reads_next(
    zookeeper: ZooKeepers, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, finish = fresh(zookeeper), batches.finish
    with (
        closing(opened(place)) as dies,
        closing(opened(place)) as reads,
        closing(opened(place)) as reads_too,
    ):
        dies.commit([Put("topic/0", b"old"), Put("gone", b"")])
        late: list[tuple[Any, ...]] = []

        def die(*args: Any) -> None:
            late.append(args)
            raise StoreError("it died")

        writes = [batches.RowWrite(rows.path_of(dies._rows, "topic/0"), rows.encoded("topic/0", LARGE[0].value, 2))]

        monkeypatch.setattr(batches, "finish", die)
        assert dies.commit([*LARGE, Delete("gone")]) == 2
        monkeypatch.setattr(batches, "finish", finish)
        with ThreadPoolExecutor(2) as pool:  # both at once: each row is written once
            got = pool.map(lambda store: store.get_many(["topic/0", "gone", "topic/699"]), (reads, reads_too))
        assert list(got) == [[Versioned(LARGE[0].value, 2), None, Versioned(LARGE[-1].value, 2)]] * 2
        reads.commit([Put("topic/0", b"newer"), Put("gone", b"again")])
        finish(*late[0])
        _, _, _, named, _ = late[0]  # it was only slow: nothing of the batch is written over what came after it
        assert not batches._all_written(dies.session, writes, named)
        assert reads.get_many(["topic/0", "gone"]) == [Versioned(b"newer", 3), Versioned(b"again", 3)]


def test_parts_of_a_batch_that_never_was_are_removed_when_they_are_old(
    zookeeper: ZooKeepers, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = fresh(zookeeper)
    with closing(opened(place)) as store:
        root = store.session.ensemble.root
        batches.stage(store.session, f"{root}/batches", [batches.RowWrite(f"{root}/rows/topic/a", b"x")])
        with closing(opened(place)):
            assert len(store.session.children(f"{root}/batches")) == 1
        monkeypatch.setattr(batches, "LEFT_OVER_MS", -1_000_000)
        with closing(opened(place)):
            assert store.session.children(f"{root}/batches") == []
            assert store.list("") == []


def test_a_batch_whose_parts_are_gone_is_damage_and_no_endless_loop(zookeeper: ZooKeepers) -> None:
    with closing(opened(fresh(zookeeper))) as store:
        root = store.session.ensemble.root
        store.session.carry_out([Set(f"{root}/generation", b"1 1 feed 2\n")])
        with pytest.raises(StoreDamagedError, match=r"parts of the batch feed in .* are gone"):
            store.get("k")


def test_a_value_that_no_znode_holds_is_refused_with_a_sentence(zookeeper: ZooKeepers) -> None:
    with closing(opened(fresh(zookeeper))) as store:
        regular = b"[[1,2,3],[1,2,3],[],[],[],[],1,0,0,0]," * 100_000
        store.commit([Put("topic/wide", regular)])  # as rows of topics are
        assert store.get("topic/wide") == Versioned(regular, 1)
        with pytest.raises(StoreError, match=r"the value of topic/x has 1\d+ bytes, and a znode of ZooKeeper holds"):
            store.commit([Put("topic/x", os.urandom(1_000_000))])
        assert store.generation == 1


# ---- the connection ------------------------------------------------------------------------------------------------


def test_a_commit_whose_answer_is_lost_was_done_and_its_mark_says_so(zookeeper: ZooKeepers) -> None:
    place = fresh(zookeeper)
    with Wire(zookeeper.servers[0].port) as wire, behind(wire, place) as store, closing(opened(place)) as other:
        store.commit([Put("commits/1", b"before")])
        with once_it_has_read(store, wire.answers.clear), ThreadPoolExecutor(1) as pool:
            committing = pool.submit(store.commit, [Put("topic/a", b"1"), Put("commits/1", b"mark")])
            soon(lambda: other.generation == 2)
            wire.cut()
            wire.open()
            assert isinstance(committing.exception(30), CommitUnknownError)
        through(store)
        assert store.get("commits/1") == Versioned(b"mark", 2)


def test_a_commit_that_never_came_to_the_server_is_never_done(zookeeper: ZooKeepers) -> None:
    place = fresh(zookeeper)
    with Wire(zookeeper.servers[0].port) as wire, behind(wire, place) as store:
        store.commit([Put("commits/1", b"before")])
        with once_it_has_read(store, wire.asks.clear), ThreadPoolExecutor(1) as pool:
            committing = pool.submit(store.commit, [Put("topic/a", b"1"), Put("commits/1", b"mark")])
            assert wire.held.wait(PATIENCE_S)
            wire.cut()
            wire.open()
            assert isinstance(committing.exception(30), CommitUnknownError)
        through(store)
        assert store.get("commits/1") == Versioned(b"before", 1)
        assert store.get("topic/a") is None


def test_the_first_call_after_a_loss_is_a_write_for_a_server_may_be_behind(zookeeper: ZooKeepers) -> None:
    place = fresh(zookeeper)
    with Wire(zookeeper.servers[0].port) as wire, behind(wire, place) as store, closing(opened(place)) as other:
        before = other.session.read([f"{other.session.ensemble.root}/barrier"])[0]
        through(store)
        assert other.session.read([f"{other.session.ensemble.root}/barrier"])[0] == before
        wire.cut()
        through(store)
        after = other.session.read([f"{other.session.ensemble.root}/barrier"])[0]
        assert before is not None
        assert after is not None
        assert after.version == before.version + 1


def test_a_watch_that_was_lost_with_the_connection_is_not_trusted(zookeeper: ZooKeepers) -> None:
    place = fresh(zookeeper)
    with Wire(zookeeper.servers[0].port) as wire, behind(wire, place) as store, closing(opened(place)) as other:
        assert store.generation == store.marked() == 0
        other.commit([Put("k", b"1")])
        soon(lambda: store.marked() == -1)
        assert store.generation == store.marked() == 1
        wire.hold()
        other.commit([Put("k", b"2")])
        wire.cut()
        soon(lambda: store.marked() == -1)
        wire.open()
        assert through(store) == store.marked() == 2


def test_an_expired_session_is_followed_by_another(zookeeper: ZooKeepers) -> None:
    """It expires while the connection is lost, of which kazoo tells only when it has another one."""
    place = fresh(zookeeper)
    said: list[str] = []
    with Wire(zookeeper.servers[0].port) as wire, behind(wire, place) as store, closing(opened(place)) as other:
        store.session._notes = said.append
        store.commit([Put("k", b"1")])
        old = store.session.id
        wire.admits = False
        wire.cut()
        soon(lambda: f"0x{old:x}" not in zookeeper.servers[0].ask("dump"))
        assert isinstance(raised(lambda: store.commit([Put("k", b"2")])), StoreError)
        wire.open()
        through(store)
        assert store.session.id != old
        assert store.commit([Put("k", b"3", 1)]) == 2
        assert other.get("k") == Versioned(b"3", 2)
    assert said[:2] == [
        "the connection to ZooKeeper was lost; others are tried",
        "the session with ZooKeeper has expired; there will be another one",
    ]
    assert said[2].startswith("connected to ZooKeeper again after ")


def test_a_server_that_stands_still_is_waited_for_no_longer_than_a_session_lives(zookeeper: ZooKeepers) -> None:
    server = zookeeper.servers[0]
    with closing(opened(fresh(zookeeper), TIMEOUT_MS)) as store:
        store.commit([Put("k", b"1")])
        server.send(signal.SIGSTOP)
        try:
            begun = time.monotonic()
            failed = raised(lambda: store.commit([Put("k", b"2")]))
            assert time.monotonic() - begun < 3 * TIMEOUT_MS / 1000
            assert isinstance(failed, StoreError | CommitUnknownError)
        finally:
            server.send(signal.SIGCONT)
        through(store)
        assert store.get("k") == Versioned(b"1", 1)


# ---- nobody there --------------------------------------------------------------------------------------------------


def test_an_ensemble_that_is_not_there_is_told_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "START_S", 0.5)
    with Wire(1) as wire:
        away = wire.address
    with pytest.raises(StoreError) as failed:
        opened(f"zookeeper://{away},nowhere.invalid:1/x")
    assert str(failed.value) == (
        f"no ZooKeeper server serves this node; {away}: Connection refused, nowhere.invalid:1: no such host is known "
        "(waited 0 s)"
    )


def test_a_server_without_a_majority_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes connections, and closes each one at once."""
    monkeypatch.setattr(session, "START_S", 0.5)
    with Wire(1) as alone:
        alone.admits = False
        with pytest.raises(StoreError, match="it accepts connections but does not serve: do most servers"):
            opened(f"zookeeper://{alone.address}/x")


def test_the_time_out_is_the_one_that_the_servers_grant(zookeeper: ZooKeepers) -> None:
    with closing(opened(fresh(zookeeper), 2 * SESSION_MAX_MS)) as store:
        assert store.session.timeout_s == SESSION_MAX_MS / 1000


def test_a_closed_store_fails_and_does_not_hang(zookeeper: ZooKeepers) -> None:
    store = opened(fresh(zookeeper))
    store.close()
    store.close()
    assert isinstance(raised(lambda: store.generation), StoreError)
