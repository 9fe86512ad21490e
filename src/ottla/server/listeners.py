"""Opens listeners: what a node listens on, and what its clients are told to use.

The addresses are taken when the node starts, and refuse connections until it serves: a client goes to another node
meanwhile, whereas a connection that nobody reads from would have it wait. Kafka's BrokerServer.startup does the same.

A listener bound to every interface tells each client the address that client came in by, unless `advertised.listeners`
says better. A public address is refused while there is neither TLS nor SASL, unless the setting
`ottla.allow.public.plaintext` says that the network is trusted.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ottla.broker.config.unserved import SECURE_PROTOCOLS, why_no_listener

NOT_SETTINGS = ("listeners", "log.dir", "log.dirs")
"""What a server is given apart from its settings; the command line takes them out of a properties file."""


class ServeRefused(Exception):
    """The server can't start; the text is one plain sentence."""


class SettingsRefused(ServeRefused):
    """The server can't start, and starting it again would not help: a person has to change something."""


@dataclass(frozen=True, slots=True)
class Listener:
    """One bound address. `advertised` is None where clients are told the address they came in by."""

    bound: socket.socket
    host: str
    port: int
    advertised: tuple[str, int] | None

    def address_for(self, local: tuple[str, int]) -> tuple[str, int]:
        """What a client that came in at `local` is told."""
        return self.advertised if self.advertised is not None else local


def open_listeners(
    texts: Sequence[str], advertised: Sequence[str] | None, allow_public_plaintext: bool
) -> list[Listener]:
    """Bind HOST:PORT texts (port 0: any free one), all or none; nobody can connect yet. Raises ServeRefused."""
    addresses = [split_address(text) for text in texts]
    if not addresses:
        raise SettingsRefused("A node needs an address to listen on, for example --listen 127.0.0.1:9092.")
    told = [split_address(text.rpartition("://")[2]) for text in advertised or ()]
    if told and len(told) != len(addresses):
        raise SettingsRefused(
            f"advertised.listeners names {len(told)} addresses for {len(addresses)} listeners: give one for each."
        )
    for host, _ in told:
        if _is_wildcard(host):
            raise SettingsRefused(f"advertised.listeners can't be {host}: no client can connect to it.")
    for host, _ in addresses:
        refuse_public(host, allow_public_plaintext, "this listener has neither TLS nor SASL")
    listeners: list[Listener] = []
    try:
        for at, (host, port) in enumerate(addresses):
            bound = _bind(host, port)
            own = (host, bound.getsockname()[1])
            advertise = told[at] if told else None if _is_wildcard(host) else own
            if advertise is not None and advertise[1] == 0:
                advertise = (advertise[0], own[1])
            listeners.append(Listener(bound, *own, advertise))
    except BaseException:
        for listener in listeners:
            listener.bound.close()
        raise
    return listeners


def refuse_elsewhere(settings: Mapping[str, str]) -> None:
    """Raise SettingsRefused for a setting without effect, as the server gets its value in another way."""
    for name in NOT_SETTINGS:
        if name in settings:
            raise SettingsRefused(
                f"{name} can't be one of the settings here: give the server its port and its data directory instead, "
                "as EmbeddedBroker(port=..., directory=...) does."
            )


def refuse_public(host: str, allowed: bool, why: str) -> None:
    """Raise SettingsRefused where other machines can reach the host, unless the settings say that the network is
    trusted."""
    if not allowed and not is_loopback(host):
        raise SettingsRefused(
            f"{host} can be reached from other machines, and {why}. If the network is trusted, add --set "
            "ottla.allow.public.plaintext=true; otherwise listen on 127.0.0.1."
        )


def split_address(text: str) -> tuple[str, int]:
    """HOST:PORT, [HOST]:PORT, or either behind PLAINTEXT://; an empty host is this machine. Raises SettingsRefused."""
    protocol, scheme, address = text.rpartition("://")
    if scheme and protocol.upper() in SECURE_PROTOCOLS:
        raise SettingsRefused(why_no_listener(text, protocol.upper()))
    if protocol.upper() == "PLAINTEXT":
        text = address
    host, _, port = text.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise SettingsRefused(f"{text!r} is not an address to listen on: write HOST:PORT, for example 127.0.0.1:9092.")
    return host.strip("[]") or "127.0.0.1", int(port)


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # accepted sockets inherit it
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise taken(host, port, error) from error
    bound.setblocking(False)
    return bound


def taken(host: str, port: int, error: OSError) -> ServeRefused:
    """Why this address can't be listened on. Only the operator can help where the process may not use the port."""
    kind = SettingsRefused if error.errno in (errno.EACCES, errno.EPERM) else ServeRefused
    return kind(
        f"Can't listen on {join_address(host, port)}: {error.strerror or error}. "
        "Stop what uses the port, or choose another one."
    )


def _is_wildcard(host: str) -> bool:
    return host in ("0.0.0.0", "::")


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
