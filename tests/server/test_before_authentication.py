"""Clients that have not authenticated: they get nothing, break nothing, and take neither memory nor time from others.

Longer: `make fuzz-login`.
"""

import contextlib
import socket
import ssl
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.client import Connection, ConnectionClosedError
from ottla.client.sasl import Login
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest
from tests.harness.server.fairness import P99_MAX_MS, NodeProcess, Probe
from tests.harness.server.strangers import (
    PASSWORD,
    SECRET,
    Strangers,
    framed,
    guarded_node,
    recorded_login,
)

VISITS = 150
IDLE = 1_000
GROWN_BYTES_MAX = 32 << 20
"""What the allocator and the first connections may take; a length that is believed takes more at once."""
IDLE_BYTES_MAX = 32 << 10
"""What a connection may take that has not authenticated."""
TIMES_SLOWER_MAX = 10
WINDOWS = 3
PATIENT = {"ottla.authentication.timeout.ms": "600000"}
"""Strangers stay for as long as the test takes."""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NodeProcess, Path]]:
    with guarded_node(tmp_path_factory.mktemp("guarded"), **PATIENT) as running:
        yield running


def ada(node: NodeProcess) -> None:
    """Who knows the password is served."""
    with Connection("127.0.0.1", node.ports["SASL"], login=Login("SCRAM-SHA-256", "ada", PASSWORD)) as connection:
        assert connection.send(MetadataRequest(None)).topics[0].name == SECRET


def test_strangers_get_nothing_whatever_they_send(guarded: tuple[NodeProcess, Path]) -> None:
    """Mutated logins, recorded tokens, half and repeated handshakes, wrong lengths, damaged records of TLS."""
    node, certificate = guarded
    before = node.resident_bytes
    tokens = recorded_login(node.ports["SASL"])
    strangers = Strangers(5, node.ports["SASL"], node.ports["TLS"], certificate, tokens)
    for _ in range(VISITS):
        strangers.visit()
    ada(node)
    assert node.resident_bytes_max - before < GROWN_BYTES_MAX
    assert "Traceback" not in node.said()
    assert '"ERROR"' not in node.said()


def test_recorded_tokens_are_worth_nothing(guarded: tuple[NodeProcess, Path]) -> None:
    node, _ = guarded
    tokens = recorded_login(node.ports["SASL"])
    with socket.create_connection(("127.0.0.1", node.ports["SASL"]), 30) as sock:
        sock.sendall(framed(SaslHandshakeRequest("SCRAM-SHA-256"), 0))
        sock.sendall(b"".join(struct.pack(">i", len(token)) + token for token in tokens))
        sock.sendall(framed(MetadataRequest(None), 9))
        answers = b""
        with contextlib.suppress(ConnectionResetError):  # the node closes before it has read all of it
            while part := sock.recv(1 << 16):
                answers += part
    assert b"s=c2FsdA==" in answers, "the handshake itself was fine"
    assert SECRET.encode() not in answers


def test_older_versions_of_tls_are_refused(guarded: tuple[NodeProcess, Path]) -> None:
    node, certificate = guarded
    old = ssl.create_default_context(cafile=str(certificate))
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    with (
        socket.create_connection(("127.0.0.1", node.ports["TLS"]), 30) as sock,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        old.wrap_socket(sock, server_hostname="127.0.0.1")


@pytest.mark.parametrize("listener", ["SASL", "TLS"])
def test_a_login_may_not_begin_without_its_listeners_protocol(guarded: tuple[NodeProcess, Path], listener: str) -> None:
    """Neither a request before the handshake, nor one in the clear where TLS is asked for."""
    node, _ = guarded
    with (
        Connection("127.0.0.1", node.ports[listener]) as connection,
        pytest.raises(ConnectionClosedError),
    ):
        connection.send(MetadataRequest(None), 9)


def test_idle_strangers_do_not_slow_others_down(guarded: tuple[NodeProcess, Path]) -> None:
    """1,000 connections that say nothing, half a request, half a handshake of TLS, or that wait for a token."""
    node, _ = guarded
    sent = (b"", b"\0\0\1\0\0\x24", framed(SaslHandshakeRequest("PLAIN"), 1), b"\x16\x03\x01\x02\x00\x01")
    with contextlib.ExitStack() as stack:
        probe = stack.enter_context(Probe(node))
        idle = probe.rest()
        before = node.resident_bytes
        for number in range(IDLE):
            port = node.ports["TLS" if number % 4 == 3 else "SASL"]
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", port), 30))
            sock.sendall(sent[number % 4])
        ada(node)
        grown = node.resident_bytes - before
        limit_ms = max(idle.p99_ms * TIMES_SLOWER_MAX, P99_MAX_MS)
        best_ms = min(probe.rest().p99_ms for _ in range(WINDOWS))  # other processes may need the machine for a while
    assert grown < IDLE * IDLE_BYTES_MAX, f"{grown / IDLE:.0f} bytes for each"
    assert best_ms <= limit_ms, f"{idle.p99_ms} ms without them"
    assert "Traceback" not in node.said()
