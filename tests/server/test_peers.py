"""Requests of a node to another over TCP: answered by a real one, and told as unanswered where there is none."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.effects import Ask
from ottla.machine import Unanswered
from ottla.metadata.nodes import PREFIX, NodeRecord
from ottla.metadata.store import Put
from ottla.protocol.messages.describe_cluster import DescribeClusterRequest
from ottla.server.buffers import Buffers
from ottla.server.listeners import SettingsRefused
from ottla.server.main import Server, ServerOptions
from ottla.server.peers import Peers, routes_of
from tests.harness.waiting import soon_in_loop

TIMEOUT_S = 20


class Questioner:
    def __init__(self) -> None:
        self.answers: asyncio.Queue[Any] = asyncio.Queue()

    def answered(self, now: int, answer: object) -> None:
        self.answers.put_nowait(answer)


def options_of(directory: Path, node_id: int) -> ServerOptions:
    return ServerOptions(str(directory / str(node_id)), ("127.0.0.1:0",), {"node.id": str(node_id)})


def tell(server: Server, node_id: int, host: str, port: int) -> None:
    """Let the node know where another one is, as its metadata store will once nodes say so themselves."""
    from ottla.metadata.image import delta_since

    server.node.store.commit([Put(f"{PREFIX}{node_id}", NodeRecord(host, port).encode())])
    server.node.changed(server.now(), delta_since(server.node.store, server.node.image))


async def ask(server: Server, node_id: int, count: int = 1) -> list[Any]:
    who = Questioner()
    for _ in range(count):
        server.node.peers.ask(server.now(), node_id, DescribeClusterRequest(), who)
    server.settle()
    return [await asyncio.wait_for(who.answers.get(), TIMEOUT_S) for _ in range(count)]


def test_another_node_answers_until_it_is_gone(tmp_path: Path) -> None:
    async def scene() -> None:
        asking, asked = Server(options_of(tmp_path, 1)), Server(options_of(tmp_path, 2))
        await asking.start()
        await asked.start()
        tell(asking, 2, "127.0.0.1", asked.port)
        for count in (1, 20):
            answers = await ask(asking, 2, count)
            assert [answer.cluster_id for answer in answers] == [asked.node.cluster_id] * count
        await asked.stop()
        (lost,) = await ask(asking, 2)
        assert isinstance(lost, Unanswered)
        again = Server(ServerOptions(str(tmp_path / "2"), (f"127.0.0.1:{asked.port}",), {"node.id": "2"}))
        await again.start()
        (answer,) = await ask(asking, 2)
        assert answer.cluster_id == asked.node.cluster_id
        await again.stop()
        await asking.stop()

    asyncio.run(scene())


def test_a_node_that_nobody_knows_or_reaches_gives_no_answer(tmp_path: Path) -> None:
    async def scene() -> None:
        asking = Server(options_of(tmp_path, 1))
        await asking.start()
        assert await ask(asking, 9) == [Unanswered("node 9 has not said where it is")]
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))
            tell(asking, 9, *nobody.getsockname())
            (answer,) = await ask(asking, 9)
        assert isinstance(answer, Unanswered)
        assert "not reached" in answer.why
        await asking.stop()

    asyncio.run(scene())


@pytest.mark.parametrize("said", [b"\0\0\0\x05nope!", b"\xff\xff\xff\xff", b"\0\0\0\x03abc", b"\0\0\0\x09ab"])
def test_what_is_no_answer_is_told_as_such(tmp_path: Path, said: bytes) -> None:
    async def scene() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(4)
            writer.write(said)
            writer.close()

        asking = Server(options_of(tmp_path, 1))
        await asking.start()
        strange = await asyncio.start_server(serve, "127.0.0.1", 0)
        tell(asking, 9, *strange.sockets[0].getsockname())
        (answer,) = await ask(asking, 9)
        assert isinstance(answer, Unanswered)
        assert "node 9" in answer.why
        strange.close()
        await asking.stop()

    asyncio.run(scene())


@pytest.mark.parametrize("piece", [1, 3, 4, 7, 1 << 16, 1 << 20])
def test_answers_come_in_any_pieces(piece: int) -> None:
    answers = [b"", b"a", b"xyz" * 5, bytes(range(256)) * (2_000 if piece > 100 else 2), b"last"]
    stream = b"".join(len(answer).to_bytes(4, "big") + answer for answer in answers)

    async def scene() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(len(answers) + 1)
            for at in range(0, len(stream), piece):
                writer.write(stream[at : at + piece])
                await writer.drain()
                await asyncio.sleep(0)
            writer.close()

        told: list[bytes | Unanswered] = []

        def hear(token: int, answer: memoryview | Unanswered) -> None:
            assert token == len(told)
            told.append(answer if isinstance(answer, Unanswered) else bytes(answer))

        asked = await asyncio.start_server(serve, "127.0.0.1", 0)
        host, port = asked.sockets[0].getsockname()
        scratch = memoryview(bytearray(1 << 17))
        peers = Peers(lambda node_id: (host, port), hear, scratch, Buffers())
        for token in range(len(answers) + 1):
            peers.send(Ask(token, 2, b"?"))
        await soon_in_loop(lambda: len(told) > len(answers))
        assert told[:-1] == answers
        assert isinstance(told[-1], Unanswered)
        asked.close()

    asyncio.run(scene())


def test_a_lost_node_is_told_before_what_a_client_asks_then() -> None:
    """Both come with one look at the sockets, where the loop was late: the client must not be sent to that node."""
    heard: list[str] = []

    async def scene() -> None:
        loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as other:
            other.setblocking(False)
            scratch = memoryview(bytearray(1 << 17))
            peers = Peers(lambda node_id: other.getsockname(), lambda *_: heard.append("lost"), scratch, Buffers())
            peers.send(Ask(1, 2, b"?"))
            accepted, _ = await loop.sock_accept(other)
            assert await loop.sock_recv(accepted, 1) == b"?"
        client, node = socket.socketpair()
        loop.add_reader(node, lambda: heard.append(node.recv(9).decode()))
        await asyncio.sleep(0)
        accepted.close()
        client.send(b"asked")
        await soon_in_loop(lambda: len(heard) == 2)
        loop.remove_reader(node)
        client.close()
        node.close()

    asyncio.run(scene())
    assert heard == ["lost", "asked"]


def test_routes_are_texts_of_nodes_and_addresses() -> None:
    assert routes_of(["2=127.0.0.1:9192", " 3 = [::1]:9 "]) == {2: ("127.0.0.1", 9192), 3: ("::1", 9)}
    for text in ("127.0.0.1:9192", "two=127.0.0.1:9192", "2=nowhere", "2=:99999"):
        with pytest.raises(SettingsRefused):
            routes_of([text])
