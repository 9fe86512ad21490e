"""Holds what the command line decides about the console. No value of it ever comes from a browser."""

from __future__ import annotations

import secrets
import ssl
from dataclasses import dataclass, field

from ottla.client.reports import TOPIC
from ottla.client.sasl import Login
from ottla.schemas.registry import RegistrySettings


@dataclass(frozen=True, slots=True)
class Settings:
    """The cluster, and how browsers reach the console.

    `login` is the cluster login of every session; with `mechanism`, each user logs in to the cluster instead. `hosts`
    are the values of the Host header that are accepted: "127.0.0.1:9900". `registry` has the schemas of records; it is
    not asked where records are hidden. `reports` is the topic to which pipelines report. `arguments` end the printed
    commands.
    """

    bootstrap: str
    hosts: frozenset[str]
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    login: Login | None = None
    mechanism: str | None = None
    read_only: bool = False
    no_records: bool = False
    registry: RegistrySettings | None = None
    reports: str = TOPIC
    is_https: bool = False
    arguments: tuple[str, ...] = ()
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)
    deadline_s: float = 10.0

    @property
    def origins(self) -> frozenset[str]:
        """The origins of the console's own pages."""
        scheme = "https" if self.is_https else "http"
        return frozenset(f"{scheme}://{host}" for host in self.hosts)
