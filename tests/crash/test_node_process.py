"""The processes that tests kill and start again keep their port while they are dead."""

import socket
import sys

import pytest

from tools.node_process import held_port

IP_LOCAL_PORT_RANGE = 51
"""Linux 6.3; Python has no name for it."""


def test_a_held_port_is_nobody_elses_while_nobody_listens_there() -> None:
    with held_port() as holder:
        address = holder.getsockname()
        for _ in range(2):
            with socket.create_server(address) as node, socket.create_connection(address) as client:
                node.accept()[0].close()
                assert client.recv(1) == b""
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(address)
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind(address)


def met_itself(port: int) -> bool:
    """Whether a client is connected to itself, for whose own end the system could choose no other port."""
    with socket.socket() as client:
        try:
            client.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, (port << 16 | port).to_bytes(4, sys.byteorder))
        except OSError:
            pytest.skip("this kernel chooses from its own range")
        try:
            client.connect(("127.0.0.1", port))
        except OSError:
            return False
        return client.getsockname() == client.getpeername()


def test_no_client_meets_itself_at_a_held_port() -> None:
    with held_port() as holder:
        port = holder.getsockname()[1]
        assert not met_itself(port)
    assert met_itself(port), "what is to be prevented does not happen here"
