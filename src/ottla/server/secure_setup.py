"""Sets up the security of a standalone node in its data directory: certificates, an administrator, properties files.

    DIRECTORY/security/
        ca.pem, ca.key            the authority: clients trust its certificate
        node.pem                  the node's private key and certificate
        node.properties           settings of the node
        client.properties         how the administrator connects, for librdkafka
        client-java.properties    the same for Java

The administrator's password is stored as a SCRAM credential in the node's own metadata store, as a node stores it for
AlterUserScramCredentials. The node must not be running.

Invariant: DIRECTORY/security exists only if the set-up is whole. The files are written to DIRECTORY/security.new,
which gets its name after the credential is committed. A run that finds `security.new` starts again.
"""

from __future__ import annotations

import datetime
import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ottla import private
from ottla.broker.config.unserved import AUTHORIZER, AUTHORIZERS
from ottla.client.sasl import Login
from ottla.client.set_up import ClientSetUp
from ottla.metadata.credentials import credential_of, key_of
from ottla.metadata.store import CommitUnknownError, MetadataStore, Put, StoreError
from ottla.protocol.scram import DIGESTS
from ottla.server.authority import Authority, Issued, hosts_of
from ottla.server.directory import DirectoryLock, replace_file
from ottla.server.listeners import join_address, split_address
from ottla.server.refusals import ServeRefusedError, SettingsRefusedError
from ottla.server.standalone_metadata import open_own

FOLDER: Final = "security"
UNFINISHED: Final = "security.new"
MECHANISM: Final = "SCRAM-SHA-512"
PASSWORD_BYTES: Final = 24
LOCAL_NAMES: Final = ("localhost", "127.0.0.1")
EVERYWHERE: Final = ("0.0.0.0", "::")
AUTHORITY, AUTHORITY_KEY, NODE_CERTIFICATE = "ca.pem", "ca.key", "node.pem"
NODE, CLIENT, JAVA_CLIENT = "node.properties", "client.properties", "client-java.properties"


@dataclass(frozen=True, slots=True)
class Address:
    """Where the node listens, and the host and port that its clients get."""

    listen: tuple[str, int]
    advertised: tuple[str, int]
    names: tuple[str, ...]
    """The names and addresses in its certificate."""


@dataclass(frozen=True, slots=True)
class SetUp:
    """The files that a run has made. `folder`: an absolute path."""

    folder: str
    address: Address
    authority_until: datetime.datetime
    node_until: datetime.datetime

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)


@dataclass(frozen=True, slots=True)
class Renewed:
    """A new certificate of a node."""

    path: str
    names: tuple[str, ...]
    until: datetime.datetime


def address_of(listen: str, hosts: Sequence[str]) -> Address:
    """`listen`: HOST:PORT. `hosts`: the names by which clients reach the node; the first one is advertised. Raises
    SettingsRefusedError."""
    host, port = split_address(listen)
    if port == 0:
        raise SettingsRefusedError("A node with a set-up needs a fixed port: name one in --listen HOST:PORT.")
    if host in EVERYWHERE and not hosts:
        raise SettingsRefusedError(
            f"A node that listens on {host} needs a name by which clients reach it: add --host NAME."
        )
    own = () if host in EVERYWHERE else (host,)
    names = tuple(dict.fromkeys((*hosts, *own, *LOCAL_NAMES)))
    return Address((host, port), (names[0], port), names)


def set_up(directory: str, address: Address, admin: str) -> SetUp | None:
    """Set up the node of this directory; None if it is set up already. Raises ServeRefusedError, OSError."""
    directory = os.path.abspath(directory)
    if os.path.exists(os.path.join(directory, FOLDER)):
        return None
    lock = DirectoryLock(directory)
    try:
        store = open_own(directory)
        try:
            return _set_up(directory, address, admin, store)
        finally:
            store.close()
    except (StoreError, CommitUnknownError) as error:
        raise ServeRefusedError(str(error)) from None
    finally:
        lock.release()


def renew(directory: str, hosts: Sequence[str], node: int | None = None) -> Renewed:
    """Issue a new certificate for the node, which a running node uses soon. `hosts`: more names for it. `node`: which
    one of a cluster, whose set-up is in this directory. Raises SettingsRefusedError, OSError."""
    folder = os.path.abspath(directory) if node is not None else os.path.join(os.path.abspath(directory), FOLDER)
    name = NODE_CERTIFICATE if node is None else f"{node}/{NODE_CERTIFICATE}"
    path = os.path.join(folder, name)
    try:
        authority = Authority.loaded(_read(folder, AUTHORITY_KEY), _read(folder, AUTHORITY))
        names = tuple(dict.fromkeys((*hosts, *hosts_of(_read(folder, name)))))
        issued = authority.issue(names)
    except FileNotFoundError as error:
        raise SettingsRefusedError(
            f"{error.filename} is missing: `ottla security init --data {directory}` makes a set-up; a key that is "
            "kept elsewhere has to be put back for a moment."
        ) from None
    except ValueError as error:
        raise SettingsRefusedError(f"No certificate can be issued from {folder}: {error}.") from None
    replace_file(path, issued.key + issued.certificate)
    return Renewed(path, names, issued.until)


def _set_up(directory: str, address: Address, admin: str, store: MetadataStore) -> SetUp:
    folder, unfinished = os.path.join(directory, FOLDER), os.path.join(directory, UNFINISHED)
    begin(unfinished, admin, store)
    authority = Authority.made()
    node = issued(authority, address.names)
    made = SetUp(folder, address, authority.itself.until, node.until)
    password = secrets.token_urlsafe(PASSWORD_BYTES)
    texts = {
        AUTHORITY: authority.itself.certificate,
        AUTHORITY_KEY: authority.itself.key,
        NODE_CERTIFICATE: node.key + node.certificate,
        NODE: _node_properties(made, directory, admin),
        **client_files(_client(made, admin, password)),
    }
    finish(unfinished, folder, texts, admin, password, store)
    return made


def begin(unfinished: str, admin: str, store: MetadataStore) -> None:
    """Remove what an interrupted run left. Raises SettingsRefusedError if the user existed before any run, and
    OSError."""
    if os.path.exists(unfinished):  # the user, if it is there, is of the run that was interrupted
        shutil.rmtree(unfinished)
    elif any(store.get(key_of(admin, each)) is not None for each in DIGESTS):
        raise SettingsRefusedError(f"There is a user {admin} already: choose another name with --admin.")


def issued(authority: Authority, names: tuple[str, ...]) -> Issued:
    """A certificate for a node with these names. Raises SettingsRefusedError."""
    try:
        return authority.issue(names)
    except ValueError as error:
        raise SettingsRefusedError(f"No certificate can have the names {', '.join(names)}: {error}.") from None


def finish(
    unfinished: str, folder: str, texts: Mapping[str, str], admin: str, password: str, store: MetadataStore
) -> None:
    """Write the files, then the user, then give the folder its name. `texts`: by name, which may begin with a
    directory. Raises StoreError, CommitUnknownError, OSError."""
    parent = os.path.dirname(folder)
    directories = dict.fromkeys((unfinished, *(os.path.dirname(os.path.join(unfinished, name)) for name in texts)))
    for directory in directories:
        private.make_directory(directory, is_ours=True)
    for name, text in texts.items():
        path = os.path.join(unfinished, name)
        private.write(path, text)
        sync(path)
    for directory in (*reversed(directories), parent):
        sync(directory)
    store.commit([Put(key_of(admin, MECHANISM), credential_of(MECHANISM, password).encode())])
    os.rename(unfinished, folder)
    sync(parent)


def _node_properties(made: SetUp, directory: str, admin: str) -> str:
    """For `ottla serve --config`."""
    listen, advertised = (join_address(*each) for each in (made.address.listen, made.address.advertised))
    settings = {
        **_identity(directory),
        "log.dirs": directory,
        "listeners": f"SASL_SSL://{listen}",
        "advertised.listeners": f"SASL_SSL://{advertised}",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": made.path(NODE_CERTIFICATE),
        "sasl.enabled.mechanisms": MECHANISM,
        AUTHORIZER: AUTHORIZERS[0],
        "super.users": f"User:{admin}",
    }
    return properties_text("Settings of a node that asks every client for a password, over TLS.", settings)


def _identity(directory: str) -> dict[str, str]:
    """The number of a node that has used the directory: it may not change."""
    try:
        with open(os.path.join(directory, "meta.properties"), encoding="utf-8", errors="replace") as file:
            number = next((line.partition("=")[2].strip() for line in file if line.startswith("node.id=")), "")
    except FileNotFoundError:
        return {}
    return {"node.id": number} if number.isdecimal() else {}


def _client(made: SetUp, admin: str, password: str) -> ClientSetUp:
    bootstrap = join_address(*made.address.advertised)
    return ClientSetUp(bootstrap, made.path(AUTHORITY), login=Login(MECHANISM, admin, password))


def client_files(client: ClientSetUp) -> dict[str, str]:
    """The contents of the properties files for clients, by name."""
    return {
        CLIENT: properties_text("For librdkafka, and for `ottla ... --command-config`.", client.librdkafka()),
        JAVA_CLIENT: properties_text("For Kafka's Java clients and tools.", client.java()),
    }


def properties_text(about: str, settings: Mapping[str, str]) -> str:
    """The content of a properties file."""
    return "".join([f"# {about}\n", *(f"{name}={value}\n" for name, value in settings.items())])


def _read(folder: str, name: str) -> bytes:
    with open(os.path.join(folder, name), "rb") as file:
        return file.read()


def sync(path: str) -> None:
    """Make a file or a directory durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
