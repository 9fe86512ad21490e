"""Keeps the options with which a cluster of one machine was started, in `cluster.json` of its directory, for the next
start.

It also checks the addresses on which the nodes can listen.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.cli.output import CommandError, UsageError

if TYPE_CHECKING:
    from ottla.server.own_certificates import OwnCertificates

PLAN = "cluster.json"
DEFAULT_LISTEN = "127.0.0.1:9092"
LAST_PORT = 65535
NODES_MAX = 99


@dataclass(frozen=True)
class Plan:
    """The options of a cluster. `listen`: HOST:PORT of node 1; the other nodes use the next ports. `removed`: nodes
    that were removed from the cluster. `secure`: whether clients log in, over TLS (`secured`). `tls`: the operator's
    certificates, as absolute paths by the end of their option; empty if the first start makes them."""

    nodes: int
    listen: str
    settings: list[str]
    removed: list[int] = field(default_factory=list[int])
    secure: bool = False
    tls: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def own_certificates(self) -> OwnCertificates | None:
        """The operator's certificates."""
        from ottla.server.own_certificates import OwnCertificates

        return OwnCertificates(self.tls["cert"], self.tls["ca"], self.tls.get("key")) if self.tls else None

    @property
    def host(self) -> str:
        return self.listen.rpartition(":")[0]

    @property
    def members(self) -> list[int]:
        """The numbers of the nodes of the cluster."""
        return [number for number in range(1, self.nodes + 1) if number not in self.removed]

    @property
    def addresses(self) -> list[str]:
        port = int(self.listen.rpartition(":")[2])
        return [f"{self.host}:{port + number}" for number in range(self.nodes)]

    def write(self, directory: Path) -> None:
        from ottla.server.directory import replace_file

        replace_file(str(directory / PLAN), json.dumps(asdict(self), indent=2) + "\n")


def files_of(certificate: str | None, key: str | None, authorities: str | None) -> dict[str, str]:
    """The `tls` of a plan, from the options. Raises UsageError."""
    options = {"--tls-cert": certificate, "--tls-key": key, "--tls-ca": authorities}
    for option, path in options.items():
        if path == "":
            raise UsageError(f"{option} is empty: give it the path of a PEM file, or leave the option out.")
    if certificate is None:
        for option, path in options.items():
            if path is not None:
                raise UsageError(f"{option} needs --tls-cert FILE.")
        return {}
    if authorities is None:
        raise UsageError("--tls-cert needs --tls-ca FILE, with the authority that nodes and clients have to trust.")
    given = {"cert": certificate, "key": key, "ca": authorities}
    return {name: os.path.abspath(path) for name, path in given.items() if path is not None}


def has_plan(directory: Path) -> bool:
    """Whether a cluster was started in this directory before."""
    return (directory / PLAN).exists()


def read_plan(directory: Path) -> Plan:
    """The plan of the cluster in this directory. Raises CommandError."""
    try:
        return plan_of(json.loads((directory / PLAN).read_text()))
    except FileNotFoundError:
        raise CommandError(no_cluster(directory)) from None
    except OSError as error:
        raise CommandError(f"{directory / PLAN} can't be read: {error.strerror or error}.") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, UsageError):
        raise CommandError(
            f"{directory / PLAN} is not what `ottla cluster start` writes there. Remove it, and start the cluster with "
            "--nodes, --listen and --set as before."
        ) from None


def plan_of(read: Any) -> Plan:
    """The plan in a file's contents. For invalid contents it raises errors that `read_plan` turns into a sentence."""
    removed, secure = list(read.get("removed", [])), read.get("secure", False)
    tls = dict(read.get("tls", {}))
    plan = Plan(read["nodes"], read["listen"], list(read["settings"]), removed, secure, tls)
    if not 1 <= plan.nodes <= NODES_MAX or not all(type(each) is str for each in plan.settings):
        raise ValueError(read)
    if type(secure) is not bool or not all(type(each) is str for each in tls.values()):
        raise ValueError(read)
    if tls and not {"cert", "ca"} <= tls.keys():
        raise ValueError(read)
    checked(plan.listen, plan.nodes)
    return plan


def no_cluster(directory: Path) -> str:
    return (
        f"There is no cluster in {directory}: name its directory with --data, or start a new one with "
        f"`ottla cluster start --data {directory}`."
    )


def require_settings(texts: list[str], others: Mapping[str, str]) -> None:
    """Raise UsageError if a node would not start with these settings, each KEY=VALUE. `others`: settings that it also
    has, unless these replace them."""
    from ottla.broker.config.key import ConfigRefusedError
    from ottla.broker.config.values import BrokerSettings
    from ottla.cli.serve import settings_of
    from ottla.cli.server_properties import NotServedError

    try:
        BrokerSettings.load({**others, **settings_of(texts)})
    except (ConfigRefusedError, NotServedError) as refused:
        raise UsageError(str(refused)) from refused


def checked(listen: str, nodes: int) -> str:
    """The unchanged address; raises UsageError if the nodes cannot listen there."""
    protocol, scheme, address = listen.rpartition("://")
    if scheme and protocol.upper() != "PLAINTEXT":
        raise UsageError(
            f"--listen takes HOST:PORT here, not {listen}: the nodes have PLAINTEXT listeners, or with --secure "
            "SASL_SSL listeners."
        )
    if protocol.upper() == "PLAINTEXT":
        listen = address
    host, _, port = listen.rpartition(":")
    if not port.isdecimal() or not 0 < int(port) <= LAST_PORT:
        raise UsageError(f"{listen!r} is not an address to listen on: write HOST:PORT, for example {DEFAULT_LISTEN}.")
    if (last := int(port) + nodes - 1) > LAST_PORT:
        raise UsageError(f"{nodes} nodes from port {port} on need ports up to {last}: {LAST_PORT} is the last one.")
    return f"{host or '127.0.0.1'}:{port}"
