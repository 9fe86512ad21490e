"""Runs the console with uvicorn, and says where it is."""

from __future__ import annotations

import socket
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Final

import uvicorn

from ottla.console.app import create_app
from ottla.console.settings import Settings
from ottla.loopback import is_loopback

STOP_S: Final = 3
"""Seconds that open requests have after a signal to stop."""


class UnsafeListenerError(Exception):
    """The listener would show the cluster to others; the text is one sentence."""


def require_safe(host: str, *, is_https: bool, mechanism: str | None) -> None:
    """Raise UnsafeListenerError unless the address is loopback, or has TLS and the cluster's logins."""
    if is_loopback(host):
        return
    if not is_https:
        raise UnsafeListenerError(
            f"The console would listen at {host} without TLS. Use --tls-cert and --tls-key, or listen at 127.0.0.1."
        )
    if mechanism is None:
        raise UnsafeListenerError(
            f"The console would listen at {host} without logins. They are those of the cluster: give client properties "
            "with security.protocol and sasl.mechanism, and without a user."
        )


def bound(host: str, port: int) -> socket.socket:
    """A listening socket. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)
    except BaseException:
        listener.close()
        raise
    return listener


def hosts_of(host: str, port: int, names: tuple[str, ...], *, is_https: bool) -> frozenset[str]:
    """The Host headers that browsers send for this listener."""
    found = {f"[{host}]" if ":" in host else host, *names}
    if is_loopback(host):
        found |= {"localhost", "127.0.0.1"} if ":" not in host else {"localhost"}
    default = 443 if is_https else 80
    return frozenset(
        each.lower()
        for name in found
        for each in ((f"{name}:{port}", name) if port == default else (f"{name}:{port}",))
    )


def address_of(settings: Settings, listener: socket.socket, path: str = "/") -> str:
    """The address to open, with the token where there is no login."""
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    token = "" if settings.mechanism else f"?token={settings.token}"
    return f"{'https' if settings.is_https else 'http'}://{shown}:{port}{path}{token}"


def with_hosts(settings: Settings, listener: socket.socket, names: tuple[str, ...]) -> Settings:
    """The settings for this listener. `names`: further names by which browsers reach it."""
    host, port = listener.getsockname()[:2]
    return replace(settings, hosts=hosts_of(host, port, names, is_https=settings.is_https))


def server(settings: Settings, certificate: tuple[Path, Path | None] | None = None) -> uvicorn.Server:
    """A server for the application. Raises OSError and ssl.SSLError for a certificate that can't be used."""
    config = uvicorn.Config(
        create_app(settings),
        http="h11",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=STOP_S,
        limit_concurrency=200,
        ssl_certfile=None if certificate is None else str(certificate[0]),
        ssl_keyfile=None if certificate is None or certificate[1] is None else str(certificate[1]),
    )
    config.load()
    if config.ssl is not None:
        config.ssl.minimum_version = ssl.TLSVersion.TLSv1_2
    return uvicorn.Server(config)
