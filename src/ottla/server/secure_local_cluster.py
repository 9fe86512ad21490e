"""Sets up the security of a cluster on one machine, in its directory: `ottla cluster start --secure`.

DIRECTORY/security has the same files as that of a standalone node (`secure_setup`). All nodes use the same certificate
and the same settings, because they have the same host and the same user. There is one listener for each node: clients
log in with passwords, and the other nodes prove the cluster's key, both over TLS.

Invariant: DIRECTORY/security exists only if the set-up is complete, as in `secure_setup`.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from typing import Final

from ottla.broker.config.unserved import AUTHORIZER, AUTHORIZERS
from ottla.client.sasl import Login
from ottla.client.set_up import ClientSetUp
from ottla.metadata.store import CommitUnknownError, StoreError
from ottla.metadata.zookeeper.protection import OPEN
from ottla.server.authority import Authority, hosts_of
from ottla.server.directory import replace_file
from ottla.server.refusals import ServeRefusedError, SettingsRefusedError
from ottla.server.secure_cluster import SECRET_BYTES, opened
from ottla.server.secure_setup import (
    AUTHORITY,
    AUTHORITY_KEY,
    CLIENT,
    EVERYWHERE,
    FOLDER,
    JAVA_CLIENT,
    LOCAL_NAMES,
    MECHANISM,
    NODE,
    NODE_CERTIFICATE,
    PASSWORD_BYTES,
    UNFINISHED,
    begin,
    client_files,
    finish,
    issued,
    properties_text,
    renew,
)

LISTENER: Final = "SASL_SSL"
"""The name and the security protocol of the listeners."""
_ABOUT: Final = "Settings of each node of a cluster that asks every client for a password, over TLS."
_BOOTSTRAP: Final = "bootstrap.servers"


def set_up_local_cluster(directory: str, metadata: str, host: str, bootstrap: Sequence[str], admin: str) -> None:
    """Set up the cluster of this directory. If it is set up already, adapt its certificate to the host, and its client
    files to the addresses.

    - `metadata`: the file that the nodes share.
    - `host`: where all nodes listen. `bootstrap`: their addresses.

    Raises ServeRefusedError, OSError.
    """
    if host in EVERYWHERE:
        raise SettingsRefusedError(
            f"Clients can't check a certificate for {host}: listen on the name or the address by which they reach the "
            "nodes, --listen HOST:PORT."
        )
    folder = os.path.join(directory, FOLDER)
    if os.path.exists(folder):
        _adapt(directory, host, ",".join(bootstrap))
        return
    try:
        with opened(metadata, OPEN) as store:
            unfinished = os.path.join(directory, UNFINISHED)
            begin(unfinished, admin, store)
            authority = Authority.made()
            node = issued(authority, tuple(dict.fromkeys((host, *LOCAL_NAMES))))
            password, secret = secrets.token_urlsafe(PASSWORD_BYTES), secrets.token_hex(SECRET_BYTES)
            login = Login(MECHANISM, admin, password)
            texts = {
                AUTHORITY: authority.itself.certificate,
                AUTHORITY_KEY: authority.itself.key,
                NODE_CERTIFICATE: node.key + node.certificate,
                NODE: properties_text(_ABOUT, {**node_settings(directory, admin), "ottla.cluster.secret": secret}),
                **client_files(ClientSetUp(",".join(bootstrap), os.path.join(folder, AUTHORITY), login=login)),
            }
            finish(unfinished, folder, texts, admin, password, store)
    except (StoreError, CommitUnknownError) as error:
        raise ServeRefusedError(str(error)) from None


def node_settings(directory: str, admin: str) -> dict[str, str]:
    """The settings of each node, except its listener and the secret."""
    folder = os.path.join(directory, FOLDER)
    return {
        "security.inter.broker.protocol": LISTENER,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": os.path.join(folder, NODE_CERTIFICATE),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": os.path.join(folder, AUTHORITY),
        "sasl.enabled.mechanisms": MECHANISM,
        AUTHORIZER: AUTHORIZERS[0],
        "super.users": f"User:{admin}",
    }


def _adapt(directory: str, host: str, bootstrap: str) -> None:
    """Raises SettingsRefusedError, OSError."""
    folder = os.path.join(directory, FOLDER)
    with open(os.path.join(folder, NODE_CERTIFICATE), "rb") as file:
        certificate = file.read()
    try:
        names = hosts_of(certificate)
    except ValueError as error:
        raise SettingsRefusedError(f"The certificate in {folder} can't be used: {error}.") from None
    if host not in names:
        renew(directory, [host])
    for name in (CLIENT, JAVA_CLIENT):
        path = os.path.join(folder, name)
        with open(path, encoding="utf-8") as file:
            before = file.read()
        lines = [f"{_BOOTSTRAP}={bootstrap}" if _is_bootstrap(each) else each for each in before.splitlines()]
        if (after := "".join(f"{each}\n" for each in lines)) != before:
            replace_file(path, after)


def _is_bootstrap(line: str) -> bool:
    return line.partition("=")[0].strip() == _BOOTSTRAP
