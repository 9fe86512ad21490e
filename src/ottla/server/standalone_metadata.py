"""Opens the metadata of a standalone node, and refuses if the node belongs to a cluster.

A cluster node that is started without `--metadata` would know none of the cluster's topics. If its own file is the
store that the nodes share, it would lead partitions that are on their disks. A cluster node therefore records the
location of its metadata in its data directory, for as long as it belongs to the cluster.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

from ottla.metadata.nodes import PREFIX as NODE_PREFIX
from ottla.metadata.sqlite import SqliteStore
from ottla.server.directory import replace_file
from ottla.server.listeners import SettingsRefusedError

OWN_METADATA: Final = "metadata.sqlite"
PLACE_FILE: Final = ".metadata-place"
"""A file in a data directory: the address of the store that its node shares with others."""
UNKNOWN: Final = "PLACE"
"""Replaces the address of the store if the file is damaged and does not name one."""


def open_own(directory: str) -> SqliteStore:
    """The metadata store of a standalone node, in its data directory. Raises SettingsRefusedError, StoreError."""
    if place := shared_place(directory):
        raise SettingsRefusedError(
            f"The data directory {directory} is that of a node in a cluster: start it with --metadata {place}. Where "
            f"that metadata is lost for good, remove {os.path.join(directory, PLACE_FILE)} first."
        )
    path = os.path.join(directory, OWN_METADATA)
    store = SqliteStore(path)
    try:
        is_shared = bool(store.list(NODE_PREFIX))
    except BaseException:
        store.close()
        raise
    if is_shared:
        store.close()
        raise SettingsRefusedError(
            f"{path} is the metadata of a cluster: start a node of it with --metadata {path} and a data directory of "
            "its own."
        )
    return store


def shared_place(directory: str) -> str:
    """The address of the metadata that this directory's node shares with others; empty if it was always standalone."""
    with suppress(FileNotFoundError), open(os.path.join(directory, PLACE_FILE), "rb") as file:
        return file.read().decode(errors="replace").strip() or UNKNOWN
    return ""


def note_shared(directory: str, place: str) -> None:
    """Record the address of the metadata that this directory's node shares with others. Raises OSError."""
    if shared_place(directory) != place:
        replace_file(os.path.join(directory, PLACE_FILE), f"{place}\n")
