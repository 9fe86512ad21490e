"""Makes and finds the files of a secured cluster of one machine, and connects to its nodes with the admin's login."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.cli.cluster.plan import Plan
from ottla.cli.connection import own_clients
from ottla.cli.properties import read_properties
from ottla.cli.security import plain_refusals

if TYPE_CHECKING:
    from ottla.client import Client

FOLDER = "security"
DEFAULT_ADMIN = "admin"


def client_file(directory: Path) -> Path:
    """The properties file with the admin's login."""
    return directory / FOLDER / "client.properties"


def node_file(directory: Path) -> Path:
    """The properties file of each node."""
    return directory / FOLDER / "node.properties"


def node_settings(directory: Path) -> dict[str, str]:
    """The settings of each node: those of its file, or of the file that the start will make. Raises CommandError."""
    if node_file(directory).exists():
        return read_properties(str(node_file(directory)))
    from ottla.server import secure_local_cluster

    return secure_local_cluster.node_settings(str(directory), DEFAULT_ADMIN)


def set_up(directory: Path, metadata: Path, plan: Plan, admin: str) -> None:
    """Make the files that are missing, and adapt the others to the plan's addresses. Raises CommandError."""
    from ottla.server.secure_local_cluster import set_up_local_cluster

    bootstrap = {number: plan.addresses[number - 1] for number in plan.members}
    with plain_refusals(directory):
        set_up_local_cluster(str(directory), str(metadata), plan.host, bootstrap, admin, plan.own_certificates)


def clients_of(directory: Path, plan: Plan) -> Callable[[str], Client]:
    """A function that makes a client of the node at an address. Raises CommandError."""
    from ottla.client import Client

    if not plan.secure:
        return Client
    properties = {"client.id": "ottla", **read_properties(str(client_file(directory)))}
    return lambda address: own_clients({**properties, "bootstrap.servers": address})()
