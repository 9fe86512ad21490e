"""Requests of a node to another over TCP: answered by a real one, and told as unanswered where there is none."""

import asyncio
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.cluster.trust import Trust
from ottla.broker.effects import PeerRequest
from ottla.machine import Unanswered
from ottla.metadata.nodes import PREFIX, NodeRecord
from ottla.metadata.store import Put
from ottla.protocol.errors import ErrorCode
from ottla.protocol.framing import decode_response
from ottla.protocol.messages.describe_cluster import DescribeClusterRequest
from ottla.server.buffers import Buffers
from ottla.server.listeners import SettingsRefusedError
from ottla.server.main import Server, ServerOptions
from ottla.server.peers import Peers, Way, routes_of
from tests.harness.waiting import soon_in_loop

TIMEOUT_S = 20
NO_TRUST = partial(Trust, 1, random.Random(1), dict)
"""Of a node that is alone."""


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


def test_a_node_that_has_moved_is_asked_at_its_new_address(tmp_path: Path) -> None:
    """A copy of its directory may have taken its place on another machine, while its old process still answers."""

    async def scene() -> None:
        asking, old, new = (Server(options_of(tmp_path, node_id)) for node_id in (1, 2, 3))
        for server in (asking, old, new):
            await server.start()
        for asked in (old, new):
            tell(asking, 9, "127.0.0.1", asked.port)
            (answer,) = await ask(asking, 9)
            assert answer.cluster_id == asked.node.cluster_id
        for server in (asking, old, new):
            await server.stop()

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
        peers = Peers(lambda node_id: Way(host, port, host), hear, NO_TRUST, scratch, Buffers())
        for token in range(len(answers) + 1):
            peers.send(PeerRequest(token, 2, b"?"))
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
            peers = Peers(
                lambda node_id: Way(*other.getsockname(), ""),
                lambda *_: heard.append("lost"),
                NO_TRUST,
                scratch,
                Buffers(),
            )
            peers.send(PeerRequest(1, 2, b"?"))
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
        with pytest.raises(SettingsRefusedError):
            routes_of([text])


# ---- proofs --------------------------------------------------------------------------------------------------------


class Recorder:
    """Carries connections over to a port, and remembers what each side has sent on the first one."""

    def __init__(self) -> None:
        self.sent = bytearray()
        self.answered = bytearray()
        self.port = 0
        """Where the connections go."""

    async def listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._accept, "127.0.0.1", 0)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.port)
        sent, answered = (bytearray(), bytearray()) if self.sent else (self.sent, self.answered)
        with suppress(asyncio.CancelledError, ConnectionError):
            await asyncio.gather(self._carry(reader, far_writer, sent), self._carry(far_reader, writer, answered))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, into: bytearray) -> None:
        while piece := await reader.read(1 << 16):
            into += piece
            writer.write(piece)
        writer.close()


def cluster_options(directory: Path, node_id: int, **settings: str) -> ServerOptions:
    given = {"node.id": str(node_id), "ottla.cluster.watchdog": "false", "ottla.cluster.secret": "hush hush"}
    given |= {name.replace("_", "."): value for name, value in settings.items()}
    metadata = str(directory / "metadata.sqlite")
    return ServerOptions(str(directory / str(node_id)), ("127.0.0.1:0",), given, metadata=metadata)


def frames_in(stream: bytes) -> list[bytes]:
    frames: list[bytes] = []
    while len(stream) >= 4:
        end = 4 + int.from_bytes(stream[:4], "big")
        frames.append(stream[4:end])
        stream = stream[end:]
    return frames


@asynccontextmanager
async def running(options: ServerOptions) -> AsyncIterator[Server]:
    server = Server(options)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def test_a_recorded_handshake_gets_nothing(tmp_path: Path) -> None:
    """What node 2 has sent to node 1, byte for byte, sent to node 1 again."""

    async def scene() -> None:
        recorder = Recorder()
        way = await recorder.listen()
        (_, port) = way.sockets[0].getsockname()
        routed = cluster_options(tmp_path, 2, ottla_cluster_routes=f"1=127.0.0.1:{port}")
        async with running(cluster_options(tmp_path, 1)) as asked:
            recorder.port = asked.port
            async with running(routed) as asking:
                await soon_in_loop(lambda: "1" in asking.node.image.nodes, "node 2 knows node 1")
                (answer,) = await ask(asking, 1)
                assert answer.cluster_id == asked.node.cluster_id
            assert len(frames_in(recorder.sent)) >= 4, "a handshake, two tokens and requests"
            for secret in (b"hush", asked.node.peers.trust.key):
                assert secret not in recorder.sent + recorder.answered
            reader, writer = await asyncio.open_connection("127.0.0.1", asked.port)
            writer.write(recorder.sent)
            handshake, token, refused = frames_in(await asyncio.wait_for(reader.read(), TIMEOUT_S))
            recorded = frames_in(recorder.answered)
            assert handshake == recorded[0]
            assert token != recorded[1]
            assert decode_response(36, 2, refused)[1].error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            writer.close()
        way.close()

    asyncio.run(scene())


def test_a_node_with_another_secret_is_asked_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        wrong = cluster_options(tmp_path, 2, ottla_cluster_secret="not that")
        async with running(cluster_options(tmp_path, 1)), running(wrong) as asking:
            await soon_in_loop(lambda: "1" in asking.node.image.nodes, "node 2 knows node 1")
            (answer,) = await ask(asking, 1)
            assert isinstance(answer, Unanswered)
            assert "does not know the key" in answer.why

    asyncio.run(scene())
    assert "not that" not in caplog.text
    warnings = [each.message for each in caplog.records if "a connection to node 1 is not used" in each.message]
    assert len(warnings) == 1
