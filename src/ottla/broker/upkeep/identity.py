"""Checks a data directory's owner: `meta.properties` and the metadata store must name the same cluster and this node.

It also checks whether this version of Ottla is new enough for that cluster.

Source: Kafka's MetaProperties.java.
"""

from __future__ import annotations

from contextlib import suppress
from os.path import dirname
from typing import Final

from ottla.log.checkpoints import (
    CheckpointUnreadableError,
    differing_bits,
    incarnations,
    read_properties,
    write_properties,
)
from ottla.log.files import FileSystem
from ottla.machine import Entropy
from ottla.metadata.features import HIGHEST, beyond
from ottla.metadata.image import MetadataImage
from ottla.metadata.nodes import PREFIX as NODE_PREFIX
from ottla.metadata.nodes import NodeRecord
from ottla.metadata.store import ABSENT, ConflictError, MetadataStore, Put, decoded
from ottla.protocol.uuids import uuid_text

META_PROPERTIES: Final = "meta.properties"
WRONG_BITS_MAX: Final = 2
"""How many bits of a small file may differ from the expected content. With more it counts as a different file."""
CLUSTER_ID_KEY: Final = "cluster/id"
NODE_KEY: Final = "cluster/node-key"
"""The random key by which nodes prove themselves to each other. It never leaves the nodes and their store."""
OLD_SECRET_KEY: Final = "cluster/secret"
"""The secret that nodes of earlier versions send to each other."""
MOVED_KEY: Final = "cluster/moved-to"
"""The new location of this store's rows: no node may start on the rows that are left here."""


class StartRefusedError(Exception):
    """The node can't start on this directory; one sentence why."""


def is_identified(files: FileSystem, directory: str) -> bool:
    """Whether an earlier incarnation of a node used this directory."""
    return files.exists(f"{directory}/{META_PROPERTIES}")


def identify(
    files: FileSystem, directory: str, store: MetadataStore, node_id: int, entropy: Entropy, *, alone: bool
) -> str:
    """The id of the cluster; a fresh directory and a fresh store get one. `alone`: the store belongs to this node only,
    which adopts the contents of its directory. Raises StartRefusedError, StoreError."""
    if (moved := store.get(MOVED_KEY)) is not None:
        place = decoded(store, MOVED_KEY, bytes.decode, moved.value)
        raise StartRefusedError(f"The metadata in {store.place} has moved: start the node with --metadata {place}.")
    path = f"{directory}/{META_PROPERTIES}"
    try:
        _mend(files, path, store, node_id, entropy)
        properties = read_properties(files, path)
    except CheckpointUnreadableError as unreadable:
        raise StartRefusedError(f"{unreadable}. Restore the file or choose another data directory.") from unreadable
    if properties is not None:
        if properties.get("version") != "1":
            raise StartRefusedError(
                f"The data directory {directory} has version {properties.get('version')} of meta.properties; "
                "this node reads version 1."
            )
        if properties.get("node.id") != str(node_id):
            raise StartRefusedError(
                f"The data directory {directory} belongs to node {properties.get('node.id')}, not to node "
                f"{node_id}. Set node.id to match, or choose another directory."
            )
    cluster_id = _cluster_id(directory, store, properties, entropy, alone=alone)
    if properties is None:
        # First: once the properties exist, the directory's own name is never synced again.
        with suppress(PermissionError):  # a parent that may not be read: its owner made the directory
            files.sync_directory(dirname(directory) or ".")
        write_properties(
            files,
            path,
            {
                "version": "1",
                "cluster.id": cluster_id,
                "node.id": str(node_id),
                "directory.id": uuid_text(entropy.randbytes(16)),
            },
        )
    return cluster_id


def _mend(files: FileSystem, path: str, store: MetadataStore, node_id: int, entropy: Entropy) -> None:
    """Write the properties again if some of their bits have flipped, or their end is cut off.

    The metadata store determines what they said. A different node id may be intended, and stays, unless this node's
    last incarnation used the directory. Raises OSError, StoreError.
    """
    stored = store.get(CLUSTER_ID_KEY)
    if stored is None or not files.exists(path):
        return
    cluster_id = decoded(store, CLUSTER_ID_KEY, bytes.decode, stored.value)
    properties = {"version": "1", "cluster.id": cluster_id, "node.id": str(node_id)}
    wanted = "".join(f"{name}={value}\n" for name, value in properties.items()).encode() + b"directory.id="
    found = files.read_bytes(path)
    number_at = wanted.index(b"node.id=") + len(b"node.id=")
    rest = found[number_at:]
    number = rest[: len(rest) - len(rest.lstrip(b"0123456789"))]  # a damaged line end is not a part of it
    if not (str(node_id).encode().startswith(number) or _was_used_by(files, dirname(path), store, node_id)):
        return
    wrong_bits = differing_bits(found, wanted)
    is_cut = len(found) < len(wanted) or not found.endswith(b"\n")
    is_garbled = not found.isascii()  # also if only the directory's id is garbled, on which nothing else depends
    if wrong_bits > WRONG_BITS_MAX or not (wrong_bits or is_cut or is_garbled):
        return
    write_properties(files, path, {**properties, "directory.id": uuid_text(entropy.randbytes(16))})


def _was_used_by(files: FileSystem, directory: str, store: MetadataStore, node_id: int) -> bool:
    """Whether the incarnation that the metadata store names for this node used the directory. Raises OSError."""
    key = f"{NODE_PREFIX}{node_id}"
    row = store.get(key)
    return row is not None and decoded(store, key, NodeRecord.decode, row.value).incarnation in incarnations(
        files, directory
    )


def _cluster_id(
    directory: str, store: MetadataStore, properties: dict[str, str] | None, entropy: Entropy, *, alone: bool
) -> str:
    stored = store.get(CLUSTER_ID_KEY)
    if stored is None:
        if properties is not None and not alone:  # the store would not know its topics
            raise StartRefusedError(
                f"The data directory {directory} belongs to cluster {properties.get('cluster.id')}, and the metadata "
                f"store {store.place} is empty. Name the one of that cluster, move its metadata there (`ottla cluster "
                "move-metadata`), or choose an empty data directory."
            )
        known = None if properties is None else properties.get("cluster.id")
        cluster_id = known or uuid_text(entropy.randbytes(16))
        try:
            store.commit([Put(CLUSTER_ID_KEY, cluster_id.encode(), ABSENT)])
        except ConflictError:  # another node of a new cluster was faster
            return _cluster_id(directory, store, properties, entropy, alone=alone)
        return cluster_id
    cluster_id = decoded(store, CLUSTER_ID_KEY, bytes.decode, stored.value)
    if properties is not None and properties.get("cluster.id") != cluster_id:
        raise StartRefusedError(
            f"The data directory {directory} belongs to cluster {properties.get('cluster.id')}, its "
            f"metadata to cluster {cluster_id}. Restore one of both from the same backup."
        )
    return cluster_id


def too_old_for(image: MetadataImage) -> str | None:
    """The message that names the feature whose level this version of Ottla does not support; None if it supports
    all."""
    above = beyond(image.levels, HIGHEST)
    if above is None:
        return None
    name, level = above
    return (
        f"The cluster is at level {level} of {name}, and this version of Ottla supports 0 to {HIGHEST.get(name, 0)}: "
        "start a newer one, or lower the level first."
    )


def shared_row(store: MetadataStore, key: str, value: bytes) -> bytes:
    """The value that the nodes that share this store have under this key; the first node puts its own there. Raises
    StoreError."""
    while (stored := store.get(key)) is None:
        with suppress(ConflictError):  # another one was faster
            store.commit([Put(key, value, ABSENT)])
    return stored.value
