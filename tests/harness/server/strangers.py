"""Plays clients without a password against a node: what may be sent before authentication, damaged in every way.

    strangers = Strangers(seed, ports, certificate)
    for _ in range(200):
        strangers.visit()     # raises AssertionError if the node has told one of them something

A visit is a login that is wrong from the beginning, or in the end: ApiVersions, a handshake of either version, tokens
of SCRAM or PLAIN, tokens of another client that were recorded. Then it is damaged: bits, lengths, cuts, doubled,
left out and exchanged frames, on a plain connection, in TLS, or in the records of TLS themselves. In the end the
stranger asks for all topics, and reads until the node hangs up.
"""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ottla.client import Client, Connection
from ottla.client.sasl import Login
from ottla.protocol.framing import RequestHeader, encode_request
from ottla.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest
from ottla.protocol.scram import ITERATIONS_MIN, ScramClient, ScramError, salted
from ottla.protocol.wire import Message
from tests.harness.certificates import Authority
from tests.harness.server.fairness import NodeProcess, running_node
from tools.fuzz_node import mutate_bytes

SECRET = "known-only-to-those-who-log-in"
"""The topic that the node has."""
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "GSSAPI", "OAUTHBEARER", "", "x" * 4_000)
USERS = ("ada", "nobody", "", "a" * 3_000, "=2C,=", "\0", "ä")
LENGTHS = (-1, 0, 1, 3, 524_288, 524_289, 1 << 30, (1 << 31) - 1, -(1 << 31))
PATIENCE_S = 30.0


SECURED = {
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT,TLS:SASL_SSL",
    "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN",
    "connection.failed.authentication.delay.ms": "0",
}
PASSWORD = "only ada knows"


@contextlib.contextmanager
def guarded_node(directory: Path, **settings: str) -> Iterator[tuple[NodeProcess, Path]]:
    """A node with the listeners PLAINTEXT, SASL and TLS, a topic, and a user ada; and its authority's certificate."""
    authority = Authority(directory)
    given = SECURED | {"ssl.keystore.location": str(authority.issue("127.0.0.1"))} | settings
    arguments = tuple(word for name in ("SASL", "TLS") for word in ("--listen", f"{name}://127.0.0.1:0"))
    with running_node(directory, settings=given, arguments=arguments, listen="PLAINTEXT://127.0.0.1:0") as node:
        keys = salted(MECHANISMS[0], PASSWORD.encode(), b"salt", ITERATIONS_MIN)
        ada = ScramCredentialUpsertion("ada", 1, ITERATIONS_MIN, b"salt", keys)
        with Client(node.address) as client:
            client.send(AlterUserScramCredentialsRequest(upsertions=[ada]))
            client.send(CreateTopicsRequest([CreatableTopic(SECRET, 1, -1)], timeout_ms=30_000))
        yield node, authority.file


def recorded_login(port: int) -> list[bytes]:
    """The tokens that ada sent to log in."""
    tokens: list[bytes] = []

    class Recording(Connection):
        def ask(self, message: Message, version: int) -> Any:
            if isinstance(message, SaslAuthenticateRequest):
                tokens.append(bytes(message.auth_bytes))
            return super().ask(message, version)

    with Recording("127.0.0.1", port, login=Login(MECHANISMS[0], "ada", PASSWORD)) as connection:
        assert connection.send(MetadataRequest(None)).topics[0].name == SECRET
    return tokens


def framed(message: Message, version: int) -> bytes:
    """A request behind its length."""
    return bytes(encode_request(RequestHeader(message.API_KEY, version, 7, "stranger"), message))


ALL_TOPICS = framed(MetadataRequest(None), 9)


class Strangers:
    """Clients that know no password. `open_port` asks for a login, `tls_port` for TLS before it.

    `recorded`: the tokens of a login that succeeded.
    """

    def __init__(
        self, seed: int, open_port: int, tls_port: int, certificate: Path, recorded: Sequence[bytes] = ()
    ) -> None:
        self._rng = random.Random(seed)
        self._ports = (open_port, tls_port)
        self._recorded = list(recorded)
        self._tls = ssl.create_default_context(cafile=str(certificate))

    def visit(self) -> None:
        rng = self._rng
        frames = self._damaged(self._login())
        with contextlib.ExitStack() as stack:
            port = self._ports[rng.randrange(2)]
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE_S))
            answer = b""
            try:
                if port == self._ports[1] and rng.random() < 0.7:
                    answer = self._in_tls(sock, frames)
                else:
                    self._send(sock, b"".join(frames))
                    sock.shutdown(socket.SHUT_WR)
                    answer = _all_of(sock)
            except TimeoutError:
                raise AssertionError(f"the node does not hang up on {frames}") from None
            except OSError:  # the node may hang up at any time
                pass
        assert SECRET.encode() not in answer, (frames, answer)

    # ---- what they send --------------------------------------------------------------------------------------------

    def _login(self) -> list[bytes]:
        """The frames of a login, each behind its length."""
        rng = self._rng
        mechanism, version = rng.choice(MECHANISMS), rng.randrange(2)
        frames = [framed(ApiVersionsRequest("c", "1"), rng.randrange(5))] if rng.random() < 0.5 else []
        frames.append(framed(SaslHandshakeRequest(mechanism), version))
        for token in self._tokens(mechanism):
            if version == 0:
                frames.append(struct.pack(">i", len(token)) + token)
            else:
                frames.append(framed(SaslAuthenticateRequest(token), rng.randrange(3)))
        return [*frames, ALL_TOPICS]

    def _tokens(self, mechanism: str) -> list[bytes]:
        rng = self._rng
        user = rng.choice(USERS)
        if self._recorded and rng.random() < 0.3:
            return self._recorded
        if not mechanism.startswith("SCRAM"):
            return [b"\0".join((b"", user.encode(), b"wrong")), *([b""] * rng.randrange(2))]
        client = ScramClient(mechanism, user, "wrong", "n" * rng.choice((1, 20, 2_000)))
        first = client.first()
        try:
            final = client.final(b"r=%bserver,s=c2FsdA==,i=4096" % (b"n" * 20))
        except ScramError:
            final = b"c=biws,r=nserver,p=" + b"A" * 44
        return [first, final]

    def _damaged(self, frames: list[bytes]) -> list[bytes]:
        """Some of these frames, in some order, some of them no longer what they were."""
        rng = self._rng
        for _ in range(rng.choice((0, 1, 1, 2, 3))):
            at = rng.randrange(len(frames))
            match rng.randrange(7):
                case 0 | 1:
                    body = mutate_bytes(rng, [frames[at][4:] or b"\0"])
                    frames[at] = struct.pack(">i", len(body)) + body
                case 2:
                    frames[at] = struct.pack(">i", rng.choice(LENGTHS)) + frames[at][4:]
                case 3:
                    frames.insert(at, frames[at])
                case 4 if len(frames) > 1:
                    del frames[at]
                case 5:
                    other = rng.randrange(len(frames))
                    frames[at], frames[other] = frames[other], frames[at]
                case _:
                    frames[at] = frames[at][: rng.randrange(len(frames[at]) + 1)]
        return frames

    # ---- how they send it ------------------------------------------------------------------------------------------

    def _send(self, sock: socket.socket, data: bytes) -> None:
        """At once, or in pieces of which the first ones are small."""
        rng, at = self._rng, 0
        if rng.random() < 0.3:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for size in (1, 1, 2, 1, rng.randrange(1, 50)):
                sock.sendall(data[at : at + size])
                at += size
        sock.sendall(data[at:])

    def _in_tls(self, sock: socket.socket, frames: list[bytes]) -> bytes:
        """In TLS, if the records arrive undamaged."""
        rng = self._rng
        heard, said = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = self._tls.wrap_bio(heard, said, server_hostname="127.0.0.1")
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                flight = said.read()
                if rng.random() < 0.3:
                    self._send(sock, mutate_bytes(rng, [flight or b"\x16"]))
                    sock.shutdown(socket.SHUT_WR)  # nothing more comes: the node need not wait for it
                    return _all_of(sock)
                self._send(sock, flight)
                more = sock.recv(1 << 16)
                if not more:
                    return b""
                heard.write(more)
        tls.write(b"".join(frames))
        data = said.read()
        self._send(sock, mutate_bytes(rng, [data]) if rng.random() < 0.3 else data)
        sock.shutdown(socket.SHUT_WR)
        heard.write(_all_of(sock))
        answer = b""
        with contextlib.suppress(ssl.SSLError):
            while part := tls.read(1 << 16):
                answer += part
        return answer


def _all_of(sock: socket.socket) -> bytes:
    """What the node sends until it hangs up."""
    parts: list[bytes] = []
    with contextlib.suppress(ConnectionError):
        while part := sock.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)
