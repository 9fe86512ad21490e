"""`ottla cluster move-metadata`: from the SQLite file of a node, or of the nodes of one machine, to ZooKeeper."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.cluster.processes import METADATA
from ottla.cli.output import CommandError, UsageError, say

if TYPE_CHECKING:
    from ottla.metadata.zookeeper.ensemble import Ensemble
    from ottla.metadata.zookeeper.protection import Protection

SESSION_TIMEOUT_MS = 18_000


def move_metadata(
    to: Annotated[str, typer.Argument(metavar="PLACE", help="Target, as zookeeper://HOST:PORT,HOST:PORT,.../PATH.")],
    data: Annotated[
        Path, typer.Option("--data", metavar="DIR", help="Data directory of the node, or directory of the cluster.")
    ],
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="Properties file of a node, with zookeeper.* settings for TLS and the login (default: neither).",
        ),
    ] = None,
) -> None:
    """Move the metadata of a node, or of a cluster on this machine, to ZooKeeper.

    Nodes on other machines can then join. No node may be running. If you interrupt the command, run it again.
    """
    from ottla.metadata.store import CommitUnknownError, StoreError
    from ottla.metadata.zookeeper.ensemble import SCHEME, ensemble_of
    from ottla.metadata.zookeeper.protection import OPEN
    from ottla.server.listeners import ServeRefusedError

    if not to.startswith(SCHEME):
        raise UsageError(f"{to!r} is no place in ZooKeeper: it begins with {SCHEME}.")
    try:
        ensemble = ensemble_of(to)
    except ValueError as error:
        raise UsageError(str(error)) from None
    directory = data.absolute()
    if not (directory / METADATA).exists():
        raise CommandError(f"There is no {METADATA} in {directory}: --data names the directory of a node or a cluster.")
    try:
        protection = OPEN if config is None else protection_in(config)
        with held(directory):
            moved(directory / METADATA, ensemble, protection)
    except (StoreError, CommitUnknownError, ServeRefusedError) as failed:
        raise CommandError(f"{str(failed)[:1].upper()}{str(failed)[1:].rstrip('.')}.") from failed


def protection_in(config: Path) -> Protection:
    """How the properties file of a node protects its sessions with ZooKeeper. Raises CommandError and
    SettingsRefusedError."""
    from ottla.broker.config.values import BrokerSettings, ConfigRefusedError
    from ottla.cli.properties import read_properties
    from ottla.server.zookeeper_settings import protection_of

    try:
        return protection_of(BrokerSettings.load(read_properties(str(config))))
    except ConfigRefusedError as refused:
        raise UsageError(f"{config}: {refused}.") from None


@contextmanager
def held(directory: Path) -> Iterator[None]:
    """Prevent every node in this directory from starting. Raises ServeRefusedError if one runs."""
    from ottla.broker.upkeep.identity import META_PROPERTIES
    from ottla.server.directory import DirectoryLock
    from ottla.server.presence import lock_all

    with ExitStack() as stack:
        if (directory / META_PROPERTIES).exists():
            stack.callback(DirectoryLock(str(directory)).release)
        if (directory / "members").is_dir():
            for file in lock_all(str(directory / "members")):
                stack.callback(os.close, file)
        yield


def moved(path: Path, ensemble: Ensemble, protection: Protection) -> None:
    """Move all rows of this file, record in the file that they were moved, and report it. Raises StoreError,
    CommitUnknownError."""
    from ottla.broker.upkeep.identity import MOVED_KEY
    from ottla.metadata.sqlite import SqliteStore
    from ottla.metadata.store import Put
    from ottla.metadata.zookeeper.moving import CLUSTER_ID_KEY, move
    from ottla.metadata.zookeeper.session import Session

    with closing(SqliteStore(str(path))) as source:
        rows = dict(source.list(""))
        if (known := rows.get(MOVED_KEY)) is not None:
            say(f"The metadata in {path} was moved to {known.value.decode()} before. {way_on(known.value.decode())}")
            return
        if CLUSTER_ID_KEY not in rows or source.lost:
            raise CommandError(
                f"{path} is not as a node leaves it: start its node once more, and stop it with SIGTERM."
            )
        session = Session(ensemble, SESSION_TIMEOUT_MS, protection=protection)
        session.open()
        try:
            generation = source.generation
            is_new = move(rows, generation, session, lambda: source.generation == generation)
        finally:
            session.close()
        source.commit([Put(MOVED_KEY, str(ensemble).encode())])
    told = "compared with the file" if is_new else "moved there before, and used since"
    topics = sum(key.startswith("topic/") for key in rows)
    cluster = rows[CLUSTER_ID_KEY].value.decode()
    say(f"{len(rows)} rows of cluster {cluster}, {topics} topics among them, are at {ensemble}: {told}.")
    say(way_on(str(ensemble)))


def way_on(place: str) -> str:
    return f"Start every node of it with --metadata {place}"
