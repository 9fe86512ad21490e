"""Presence over ZooKeeper: who is missed when, who replaces whom, and since when a node may trust nothing any more."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ottla.metadata.store import CommitUnknownError, Put
from ottla.metadata.zookeeper.session import Create, Remove
from ottla.metadata.zookeeper.store import ZooKeeperStore
from ottla.server import zookeeper_presence
from ottla.server.clocks import moment
from ottla.server.listeners import ServeRefusedError
from ottla.server.port_probe import Life
from ottla.server.shared_metadata import TRUST
from ottla.server.zookeeper_presence import ZooKeeperPresence
from tests.harness.waiting import soon_in_loop
from tests.harness.wires import Wire
from tests.harness.zookeepers import ZooKeepers, fresh, opened

TIMEOUT_MS = 3000


class Entered:
    """A node that is there: its place in ZooKeeper, and a port at which somebody listens."""

    def __init__(
        self, life: Life, store: ZooKeeperStore, presence: ZooKeeperPresence, listening: asyncio.Server
    ) -> None:
        self.life = life
        self.store = store
        self.presence = presence
        self.listening = listening
        self.ends: list[asyncio.StreamWriter] = []

    def sees(self) -> dict[int, str]:
        return self.presence.look()

    def stop_listening(self) -> None:
        """As the system does for a process that has ended."""
        self.listening.close()
        for end in self.ends:
            end.transport.abort()


async def in_thread(call: Callable[..., Any], *args: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, call, *args)


@asynccontextmanager
async def node(number: int, place: str, name: str, directory: str = "") -> AsyncIterator[Entered]:
    """A node at this place, in this directory, until the end of the block."""
    heard: list[asyncio.StreamWriter] = []
    listening = await asyncio.start_server(lambda _, writer: heard.append(writer), "127.0.0.1", 0)
    life = Life(number, name, "127.0.0.1", listening.sockets[0].getsockname()[1], directory)
    store = opened(place, TIMEOUT_MS)
    try:
        entered = Entered(life, store, ZooKeeperPresence(store, life), listening)
        entered.ends = heard
        try:
            yield entered
        finally:
            await in_thread(entered.presence.leave)
            entered.stop_listening()
    finally:
        await in_thread(store.close)


async def test_nodes_see_each_other_come_and_go(zookeeper: ZooKeepers) -> None:
    place = fresh(zookeeper)
    async with node(1, place, "a") as one:
        async with node(2, place, "b") as two:
            await soon_in_loop(lambda: one.sees() == two.sees() == {1: "a", 2: "b"})
        await soon_in_loop(lambda: one.sees() == {1: "a"})
        async with node(2, place, "c"):  # another life of it
            await soon_in_loop(lambda: one.sees() == {1: "a", 2: "c"})


async def test_who_listens_is_told_of_commits_of_nodes_that_come_and_of_ports_that_refuse(
    zookeeper: ZooKeepers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zookeeper_presence, "RENEWALS", 0.01)  # nothing is found out just because it is time
    place, told = fresh(zookeeper), asyncio.Event()

    async def told_until(holds: Callable[[], bool]) -> None:
        """Looks happen when there is news and else never."""
        async with asyncio.timeout(30):
            while told.clear() or not holds():
                await told.wait()

    async with node(1, place, "a") as one:
        assert one.presence.listen(told.set) == 1
        async with node(2, place, "b") as two:
            await told_until(lambda: one.sees() == {1: "a", 2: "b"})
            await in_thread(lambda: one.store.generation)
            assert one.store.marked() >= 0
            await in_thread(two.store.commit, [Put("topics/t", b"")])
            await told_until(lambda: one.store.marked() == -1)
            await soon_in_loop(lambda: bool(two.ends))  # somebody knocked
            two.stop_listening()
            await told_until(lambda: one.sees() == {1: "a"})


async def test_a_node_whose_port_refuses_is_missed_before_its_session_expires(zookeeper: ZooKeepers) -> None:
    place = fresh(zookeeper)
    async with node(1, place, "a") as one, node(2, place, "b") as two:
        await soon_in_loop(lambda: one.sees() == {1: "a", 2: "b"})
        before = two.presence.renewed_at
        two.stop_listening()
        await soon_in_loop(lambda: two.presence.renewed_at > before)  # its session lives
        await soon_in_loop(lambda: one.sees() == {1: "a"})
        again = await asyncio.start_server(lambda *_: None, "127.0.0.1", two.life.port)
        await soon_in_loop(lambda: one.sees() == {1: "a", 2: "b"})  # it was somebody else who refused
        again.close()


async def test_a_node_that_is_cut_off_trusts_nothing_before_others_miss_it_and_comes_back(
    zookeeper: ZooKeepers,
) -> None:
    """Its session expires while the connection is lost; it hears of that when it has another one."""
    place = fresh(zookeeper)
    with Wire(zookeeper.servers[0].port) as wire:
        behind = f"zookeeper://{wire.address}/{place.rpartition('/')[2]}"
        async with node(1, place, "a") as one, node(2, behind, "b") as two:
            await soon_in_loop(lambda: one.sees() == {1: "a", 2: "b"} and two.presence.renewed_at > 0)
            wire.hold()
            begun = moment()
            await soon_in_loop(lambda: one.sees() == {1: "a"})
            assert moment() - two.presence.renewed_at > TRUST * TIMEOUT_MS
            assert two.presence.renewed_at <= begun
            wire.cut()
            wire.open()
            await soon_in_loop(lambda: one.sees() == two.sees() == {1: "a", 2: "b"})
            await soon_in_loop(lambda: two.presence.renewed_at > begun)


async def test_who_came_while_the_watch_was_lost_is_seen(zookeeper: ZooKeepers) -> None:
    place = fresh(zookeeper)
    with Wire(zookeeper.servers[0].port) as wire:
        async with node(1, f"zookeeper://{wire.address}/{place.rpartition('/')[2]}", "a") as one:
            await soon_in_loop(lambda: one.presence.renewed_at > 0)
            wire.hold()
            async with node(2, place, "b"):
                wire.cut()
                wire.open()
                await soon_in_loop(lambda: one.sees() == {1: "a", 2: "b"})


# ---- whose place it is ---------------------------------------------------------------------------------------------


async def test_an_earlier_life_in_the_same_directory_is_replaced_at_once(zookeeper: ZooKeepers) -> None:
    """It listens still, or somebody else at its address."""
    place = fresh(zookeeper)
    async with node(1, place, "a") as one, node(2, place, "old", "boot:1:7") as old:
        await soon_in_loop(lambda: one.sees() == {1: "a", 2: "old"})
        old.presence._left = True  # as a process that was killed: its session lives on for a while
        async with node(2, place, "new", "boot:1:7"):
            await soon_in_loop(lambda: one.sees() == {1: "a", 2: "new"})


@pytest.mark.parametrize("directory", ["", "boot:1:8"])
async def test_an_earlier_life_elsewhere_is_waited_for_until_its_session_ends(
    zookeeper: ZooKeepers, directory: str
) -> None:
    """As on another machine, or in another directory: it may be alive, although its port refuses connections."""
    place = fresh(zookeeper)
    async with node(2, place, "old", "boot:1:7") as old:
        await soon_in_loop(lambda: old.presence.renewed_at > 0)
        await in_thread(old.presence.leave)  # it renews its place no more
        old.stop_listening()
        store = opened(place, TIMEOUT_MS)
        life = Life(2, "new", "127.0.0.1", 1, directory)
        entering = asyncio.ensure_future(in_thread(ZooKeeperPresence, store, life))
        done, _ = await asyncio.wait([entering], timeout=TIMEOUT_MS / 1000)
        assert not done
        await in_thread(old.store.close)
        presence = await entering
        assert presence.look() == {2: "new"}
        await in_thread(presence.leave)
        await in_thread(store.close)


@pytest.mark.parametrize("directory", ["", "boot:1:8"])
async def test_another_process_with_the_same_number_is_refused(zookeeper: ZooKeepers, directory: str) -> None:
    """One in a copy of the directory, too, and while the other one does not listen yet."""
    place = fresh(zookeeper)
    async with node(2, place, "a", "boot:1:7") as there:
        there.stop_listening()
        store = opened(place, TIMEOUT_MS)
        with pytest.raises(ServeRefusedError) as refused:
            await in_thread(lambda: ZooKeeperPresence(store, Life(2, "b", "127.0.0.1", 1, directory)))
        store.close()
        assert str(refused.value) == (
            f"Node 2 of this cluster runs already, at 127.0.0.1:{there.life.port}. Stop it, or give this one another "
            "--node-id."
        )
        before = there.presence.renewed_at
        await soon_in_loop(lambda: there.presence.renewed_at > before)


async def test_the_znode_of_an_expired_session_of_ones_own_is_replaced(zookeeper: ZooKeepers) -> None:
    """ZOOKEEPER-2985: it is still there, or somebody has removed it."""
    place = fresh(zookeeper)
    async with node(1, place, "a") as one:
        await soon_in_loop(lambda: one.presence.renewed_at > 0)
        other, path = opened(place), f"{one.store.session.ensemble.root}/ids/1"
        other.session.carry_out([Remove(path), Create(path, one.life.encode(), ephemeral=True)])
        before = moment()
        await soon_in_loop(lambda: one.presence.renewed_at > before)
        (znode,) = other.session.read([path])
        assert znode is not None
        assert znode.session == one.store.session.id
        other.session.carry_out([Remove(path)])
        before = moment()
        await soon_in_loop(lambda: one.presence.renewed_at > before)
        other.close()


async def test_a_place_that_somebody_else_has_taken_is_not_fought_for(
    zookeeper: ZooKeepers, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = fresh(zookeeper)
    async with node(1, place, "a") as one:
        await soon_in_loop(lambda: one.presence.renewed_at > 0)
        other, path = opened(place), f"{one.store.session.ensemble.root}/ids/1"
        taken = Life(1, "b", "127.0.0.1", 7)
        other.session.carry_out([Remove(path), Create(path, taken.encode(), ephemeral=True)])
        with caplog.at_level(logging.ERROR):
            await soon_in_loop(lambda: "another process has taken the place of node 1, at 127.0.0.1:7" in caplog.text)
        since, looks, children = one.presence.renewed_at, 0, one.store.session.children

        def counted(*asked: Any) -> list[str]:
            nonlocal looks
            looks += 1
            return children(*asked)

        monkeypatch.setattr(one.store.session, "children", counted)
        await soon_in_loop(lambda: looks == 3)  # two times it has seen whose the place is, and done nothing
        assert one.presence.renewed_at == since
        (znode,) = other.session.read([path])
        assert znode is not None
        assert znode.content == taken.encode()
        await in_thread(other.close)  # and is taken again when that has ended
        await soon_in_loop(lambda: one.presence.renewed_at > since)


async def test_a_place_that_was_taken_without_an_answer_is_found_taken(
    zookeeper: ZooKeepers, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = fresh(zookeeper)
    store = opened(place, TIMEOUT_MS)
    carry_out, calls = store.session.carry_out, 0

    def and_lose_the_answer(operations: Any) -> None:
        nonlocal calls
        carry_out(operations)
        calls += 1
        if calls == 1:
            raise CommitUnknownError("lost")

    monkeypatch.setattr(store.session, "carry_out", and_lose_the_answer)
    presence = ZooKeeperPresence(store, Life(1, "a", "127.0.0.1", 1))
    await soon_in_loop(lambda: presence.renewed_at > 0)
    await in_thread(presence.leave)
    store.close()
