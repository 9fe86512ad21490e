"""Reads the address of a metadata store in ZooKeeper: the servers, and the znode that contains the store.

zookeeper://HOST:PORT,HOST:PORT,HOST:PORT/PATH      default port 2181, default path /ottla
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

SCHEME: Final = "zookeeper://"
PORT: Final = 2181
ROOT: Final = "/ottla"
EXAMPLE: Final = "zookeeper://zk1:2181,zk2:2181,zk3:2181/ottla"

_SERVER = re.compile(r"(?P<host>\[[0-9a-fA-F:]+\]|[A-Za-z0-9._-]+)(:(?P<port>[0-9]+))?")
_SEGMENT = re.compile(r"[A-Za-z0-9._-]+")


class Ensemble(NamedTuple):
    """The servers, each HOST:PORT, and the znode that contains everything of one cluster."""

    servers: tuple[str, ...]
    root: str

    def __str__(self) -> str:
        return f"{SCHEME}{','.join(self.servers)}{self.root}"


def ensemble_of(text: str) -> Ensemble:
    """Parse an address. Raises ValueError with a sentence if it is not valid."""
    servers, _, path = text.removeprefix(SCHEME).partition("/")
    found: list[str] = []
    for each in servers.split(","):
        match = _SERVER.fullmatch(each.strip())
        port = int(match["port"] or PORT) if match else 0
        if match is None or not 0 < port < 65536:
            raise ValueError(f"{each.strip() or text!r} is no server of a ZooKeeper: write {EXAMPLE}.")
        found.append(f"{match['host']}:{port}")
    segments = [segment for segment in path.split("/") if segment]
    if not segments:
        return Ensemble(tuple(found), ROOT)
    if any(not _SEGMENT.fullmatch(each) or each in (".", "..") for each in segments) or segments[0] == "zookeeper":
        raise ValueError(f"/{path} is no place for a cluster in ZooKeeper: write {EXAMPLE}.")
    return Ensemble(tuple(found), "/" + "/".join(segments))
