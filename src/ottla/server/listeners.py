"""Opens listeners: the addresses that a node listens on, and the addresses that its clients get.

The node binds the addresses when it starts, and refuses connections until it serves. A client then tries another node,
whereas a connection that the node does not read would make the client wait. Kafka's BrokerServer.startup does the same.

Each connection keeps the name of its listener. Each node of a cluster appears to a client with the address that it
advertises for the client's listener.

A listener bound to every interface gives each client the address that the client connected to, unless
`advertised.listeners` sets another. A public address needs TLS, and SASL or clients' certificates, unless the setting
`ottla.allow.public.plaintext` declares the network trusted.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.config.unserved import protocols_of, why_no_listener
from ottla.broker.config.values import BrokerSettings
from ottla.loopback import is_loopback
from ottla.server.refusals import ServeRefusedError, SettingsRefusedError

if TYPE_CHECKING:
    from ottla.server.tls import Tls

NOT_SETTINGS = ("listeners", "log.dir", "log.dirs")
"""The parameters of a server besides its settings. The command line reads them from a properties file."""


PLAINTEXT = "PLAINTEXT"
"""The security protocols of listeners, and the name of a listener that has no other name."""
SSL = "SSL"
WITH_SASL = ("SASL_PLAINTEXT", "SASL_SSL")
WITHOUT_TLS = (PLAINTEXT, "SASL_PLAINTEXT")
SECURITY_PROTOCOLS = (PLAINTEXT, SSL, *WITH_SASL)
"""A listener with one of these names speaks that protocol, unless the map sets another."""


class Listener(NamedTuple):
    """One bound address. If `advertised` is None, clients get the address that they connected to. `tls`: what encrypts
    its connections; None for plaintext. `sasl`: whether clients have to authenticate by it."""

    name: str
    bound: socket.socket
    host: str
    port: int
    advertised: tuple[str, int] | None
    sasl: bool = False
    tls: Tls | None = None

    @property
    def security_protocol(self) -> str:
        """Kafka's name of what its connections speak."""
        protocol = PLAINTEXT if self.tls is None else SSL
        return f"SASL_{protocol}" if self.sasl else protocol

    def address_for(self, local: tuple[str, int]) -> tuple[str, int]:
        """The address for a client that connected to `local`."""
        return self.advertised if self.advertised is not None else local


def open_listeners(texts: Sequence[str], settings: BrokerSettings) -> list[Listener]:
    """Bind [NAME://]HOST:PORT texts (port 0: any free port), all or none. No client can connect yet. Raises
    ServeRefusedError.

    `settings` define the advertised addresses, the protocol of each listener name, and whether the network is
    trusted.
    """
    wanted = [_split_name(text) for text in texts]
    if not wanted:
        raise SettingsRefusedError("A node needs an address to listen on, for example --listen 127.0.0.1:9092.")
    names = [name or PLAINTEXT for name, _ in wanted]
    protocols = _protocols([name for name, _ in wanted if name], str(settings["listener.security.protocol.map"]))
    addresses = [split_address(address) for _, address in wanted]
    told = _told([name for name, _ in wanted], settings["advertised.listeners"] or ())
    for name, (host, _) in zip(names, addresses, strict=True):
        if protocols[name] in WITHOUT_TLS:
            refuse_public(host, settings["ottla.allow.public.plaintext"], "this listener has no TLS")
        elif protocols[name] == SSL and settings.of_listener(name, "ssl.client.auth") != "required":
            why = "this listener does not ask clients who they are"
            refuse_public(host, settings["ottla.allow.public.plaintext"], why)
    encrypted = [name for name in names if protocols[name] not in WITHOUT_TLS]
    if not encrypted and settings["ottla.metrics.security.protocol"] == PLAINTEXT:
        _refuse_unused_tls(settings)
    tls = _tls_of(encrypted, settings)
    listeners: list[Listener] = []
    try:
        for name, (host, port), advertise in zip(names, addresses, told, strict=True):
            bound = _bind(host, port)
            own = (host, bound.getsockname()[1])
            if advertise is None:
                advertise = None if _is_wildcard(host) else own
            elif advertise[1] == 0:
                advertise = (advertise[0], own[1])
            listeners.append(Listener(name, bound, *own, advertise, protocols[name] in WITH_SASL, tls.get(name)))
        if settings["security.inter.broker.protocol"] != PLAINTEXT:
            between_nodes(listeners, settings)
    except BaseException:
        for listener in listeners:
            listener.bound.close()
        raise
    return listeners


def refuse_elsewhere(settings: Mapping[str, str]) -> None:
    """Raise SettingsRefusedError for a setting without effect, because the server gets its value in another way."""
    for name in NOT_SETTINGS:
        if name in settings:
            raise SettingsRefusedError(
                f"{name} can't be one of the settings here: give the server its port and its data directory instead, "
                "as EmbeddedBroker(port=..., directory=...) does."
            )


def between_nodes(listeners: Sequence[Listener], settings: BrokerSettings) -> Listener:
    """The listener that other nodes of the cluster use: that of inter.broker.listener.name, or of
    security.inter.broker.protocol; without both PLAINTEXT, or the first listener if none has this name. Raises
    SettingsRefusedError."""
    by_name = {listener.name: listener for listener in reversed(listeners)}
    name, protocol = settings["inter.broker.listener.name"], settings["security.inter.broker.protocol"]
    if name is None and protocol == PLAINTEXT:
        return by_name.get(PLAINTEXT, listeners[0])
    if name is not None and protocol != PLAINTEXT:
        raise SettingsRefusedError(
            "inter.broker.listener.name and security.inter.broker.protocol both say which listener nodes use: set one."
        )
    setting = "security.inter.broker.protocol" if name is None else "inter.broker.listener.name"
    found = by_name.get(str(name or protocol).upper())
    if found is None:
        raise SettingsRefusedError(f"{setting} is {name or protocol}, but listeners names {', '.join(by_name)}.")
    return found


def _split_name(text: str) -> tuple[str, str]:
    """(name in capitals, or empty, HOST:PORT) of [NAME://]HOST:PORT."""
    name, _, address = text.rpartition("://")
    return name.strip().upper(), address.strip()


def _protocols(names: Sequence[str], protocol_map: str) -> dict[str, str]:
    """The security protocols by listener name. Each name may be given once, and its protocol has to be served. Raises
    SettingsRefusedError."""
    protocols = {each: each for each in SECURITY_PROTOCOLS} | protocols_of(protocol_map)
    for name in names:
        if names.count(name) > 1:
            raise SettingsRefusedError(f"listeners names {name} twice.")
        if name not in protocols:
            raise SettingsRefusedError(
                f"listener.security.protocol.map does not say what the listener {name} speaks: add {name}:PLAINTEXT, "
                f"{name}:SSL or {name}:SASL_SSL."
            )
        if protocols[name] not in SECURITY_PROTOCOLS:
            raise SettingsRefusedError(why_no_listener(name, protocols[name]))
    return protocols


def _tls_of(names: Sequence[str], settings: BrokerSettings) -> dict[str, Tls]:
    """The TLS of these listeners. Raises SettingsRefusedError."""
    if not names:
        return {}
    from ottla.server.tls import Tls  # a node without TLS starts without it
    from ottla.server.tls_settings import TlsSettings

    return {name: Tls(TlsSettings(settings, name)) for name in names}


def _refuse_unused_tls(settings: BrokerSettings) -> None:
    """Raise SettingsRefusedError for settings of TLS that no listener uses: the operator counts on it."""
    for name in ("ssl.keystore.location", "ssl.keystore.key", "ssl.client.auth"):
        if settings[name] not in (None, "", "none"):
            raise SettingsRefusedError(
                f"{name} would protect nothing: no listener speaks TLS. Name one SSL://HOST:PORT, or say so in "
                "listener.security.protocol.map."
            )


def _told(names: Sequence[str], advertised: Sequence[str]) -> list[tuple[str, int] | None]:
    """The address that clients of each listener get; None where the settings give none. Listeners without names get the
    addresses in order. Raises SettingsRefusedError."""
    if not advertised:
        return [None] * len(names)
    said = [_split_name(text) for text in advertised]
    addresses = [split_address(address) for _, address in said]
    for host, _ in addresses:
        if _is_wildcard(host):
            raise SettingsRefusedError(f"advertised.listeners can't be {host}: no client can connect to it.")
    if not any(names):
        if len(addresses) != len(names):
            raise SettingsRefusedError(
                f"advertised.listeners names {len(addresses)} addresses for {len(names)} listeners: give one for each."
            )
        return [*addresses]
    by_name = {name or PLAINTEXT: address for (name, _), address in zip(said, addresses, strict=True)}
    wanted = [name or PLAINTEXT for name in names]
    unknown = [name for name in by_name if name not in wanted]
    missing = [name for name in wanted if name not in by_name]
    if unknown:
        raise SettingsRefusedError(f"advertised.listeners names {', '.join(unknown)}, which listeners does not.")
    if missing:
        raise SettingsRefusedError(
            f"advertised.listeners does not name an address for clients of listener {missing[0]}."
        )
    return [by_name[name] for name in wanted]


def refuse_public(host: str, allowed: bool, why: str) -> None:
    """Raise SettingsRefusedError if other machines can reach the host, unless the settings declare the network
    trusted."""
    if not allowed and not is_loopback(host):
        raise SettingsRefusedError(
            f"{host} can be reached from other machines, and {why}. If the network is trusted, add --set "
            "ottla.allow.public.plaintext=true; otherwise listen on 127.0.0.1."
        )


def split_address(text: str) -> tuple[str, int]:
    """HOST:PORT, [HOST]:PORT, or either behind PLAINTEXT://; an empty host is this machine. Raises
    SettingsRefusedError."""
    protocol, scheme, address = text.rpartition("://")
    if scheme and protocol.upper() in SECURITY_PROTOCOLS:
        text = address
    host, _, port = text.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise SettingsRefusedError(
            f"{text!r} is not an address to listen on: write HOST:PORT, for example 127.0.0.1:9092."
        )
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


def taken(host: str, port: int, error: OSError) -> ServeRefusedError:
    """Explain why this address can't be bound. Only the operator can help if the process may not use the port."""
    kind = SettingsRefusedError if error.errno in (errno.EACCES, errno.EPERM) else ServeRefusedError
    return kind(
        f"Can't listen on {join_address(host, port)}: {error.strerror or error}. "
        "Stop what uses the port, or choose another one."
    )


def _is_wildcard(host: str) -> bool:
    return host in ("0.0.0.0", "::")
