"""What commands say of a listener that speaks another security protocol than the client is set to."""

import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from ottla.cli.listener_probe import mismatch
from ottla.testing import EmbeddedBroker
from tests.harness.certificates import Authority

from .conftest import Run

WITHOUT_SASL = struct.pack(">ihi", 7, 34, 0)
WITH_SASL = struct.pack(">ihi", 7, 33, 1) + struct.pack(">h", 13) + b"SCRAM-SHA-512"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Authority(tmp_path_factory.mktemp("pems")).issue("a")


@contextmanager
def listener(answer: bytes, certificate: Path | None = None) -> Iterator[partial[socket.socket]]:
    """A listener with this answer to each request, behind TLS with a certificate; gives what connects to it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if certificate is not None:
        context.load_cert_chain(certificate)

    def secured(accepted: socket.socket) -> socket.socket:
        return accepted if certificate is None else context.wrap_socket(accepted, server_side=True)

    def serve() -> None:
        while True:
            try:
                accepted, _ = listening.accept()
            except OSError:
                return
            with suppress(OSError, struct.error), accepted, secured(accepted) as client:
                (size,) = struct.unpack(">i", client.recv(4))
                if size <= 1000:
                    client.recv(size)
                    client.sendall(struct.pack(">i", len(answer)) + answer if answer else b"")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        place: tuple[str, int] = listening.getsockname()
        yield partial(socket.create_connection, place, 10)
        with suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)
    thread.join(10)


CASES = [
    ("PLAINTEXT", "", "PLAINTEXT", WITHOUT_SASL, None),
    ("PLAINTEXT", "", "SASL_PLAINTEXT", WITH_SASL, "speaks SASL_PLAINTEXT with SCRAM-SHA-512, and"),
    ("PLAINTEXT", "", "SSL", WITHOUT_SASL, "speaks SSL, and this client is set to PLAINTEXT"),
    ("SSL", "", "SSL", WITHOUT_SASL, None),
    ("SSL", "", "PLAINTEXT", WITHOUT_SASL, "Set the client property security.protocol=PLAINTEXT, for example with -X."),
    ("SSL", "", "SASL_SSL", WITH_SASL, "speaks SASL_SSL with"),
    ("SASL_SSL", "PLAIN", "PLAINTEXT", WITHOUT_SASL, "speaks PLAINTEXT, and this client is set to SASL_SSL"),
    ("sasl_plaintext", "PLAIN", "PLAINTEXT", WITHOUT_SASL, "speaks PLAINTEXT, and"),
    ("SASL_PLAINTEXT", "PLAIN", "SASL_PLAINTEXT", WITH_SASL, "mechanism PLAIN: it offers SCRAM-SHA-512"),
    ("SASL_PLAINTEXT", "SCRAM-SHA-512", "SASL_PLAINTEXT", b"\0\0\0\7\0\0" + WITH_SASL[6:], None),
    ("PLAINTEXT", "", "PLAINTEXT", b"", None),
    ("PLAINTEXT", "", "PLAINTEXT", b"HTTP/1.1 400 Bad Request", None),
]  # fmt: skip


@pytest.mark.parametrize(("client", "mechanism", "listens", "answer", "says"), CASES)
def test_a_mismatch_is_said_where_it_is_certain(
    certificate: Path, client: str, mechanism: str, listens: str, answer: bytes, says: str | None
) -> None:
    with listener(answer, certificate if listens.endswith("SSL") else None) as connect:
        why = mismatch("here:1", connect, {"security.protocol": client, "sasl.mechanism": mechanism})
    assert (why is None) if says is None else (why is not None and says in why and "here:1" in why)


def test_a_command_says_so_at_a_plain_node(ottla: Run) -> None:
    with EmbeddedBroker() as broker:
        where = ("-b", broker.bootstrap_servers)
        assert ottla("topics", "list", *where).code == 0
        for protocol in ("SSL", "SASL_PLAINTEXT", "SASL_SSL"):
            refused = ottla("topics", "list", *where, "-X", f"security.protocol={protocol}", code=1)
            assert f"speaks PLAINTEXT, and this client is set to {protocol}" in refused.err
