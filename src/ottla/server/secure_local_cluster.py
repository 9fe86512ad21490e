"""Sets up the security of a cluster on one machine, in its directory: `ottla cluster start --secure`.

DIRECTORY/security has the same files as that of a standalone node (`secure_setup`). All nodes use the same certificate
and the same settings, because they have the same host and the same user. There is one listener for each node: clients
log in with passwords, and the other nodes prove the cluster's key, both over TLS.

If the operator brings certificates (`own_certificates`), each node gets their paths beside these files, and no
authority is made. The certificates of an earlier start stay, unused.

Invariant: DIRECTORY/security exists only if the set-up is complete, as in `secure_setup`.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from typing import Final

from ottla.broker.config.unserved import AUTHORIZER, AUTHORIZERS
from ottla.client.sasl import Login
from ottla.client.set_up import ClientSetUp
from ottla.metadata.store import CommitUnknownError, StoreError
from ottla.metadata.zookeeper.protection import OPEN
from ottla.server.authority import Authority, hosts_of
from ottla.server.directory import replace_file
from ottla.server.own_certificates import OwnCertificates
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


def set_up_local_cluster(
    directory: str,
    metadata: str,
    host: str,
    bootstrap: Mapping[int, str],
    admin: str,
    own: OwnCertificates | None = None,
) -> None:
    """Set up the cluster of this directory. If it is set up already, adapt its certificate to the host, and its client
    files to the addresses and the authority.

    - `metadata`: the file that the nodes share.
    - `host`: where all nodes listen. `bootstrap`: their addresses, by node.
    - `own`: certificates that the operator brings, None for one that is made here.

    Raises ServeRefusedError, OSError.
    """
    if host in EVERYWHERE:
        raise SettingsRefusedError(
            f"Clients can't check a certificate for {host}: listen on the name or the address by which they reach the "
            "nodes, --listen HOST:PORT."
        )
    if own is not None:
        own.check(bootstrap, host)
    folder = os.path.join(directory, FOLDER)
    authority = os.path.join(folder, AUTHORITY) if own is None else own.authorities
    addresses = ",".join(bootstrap.values())
    if os.path.exists(folder):
        if own is None:
            _adapt_certificate(directory, host)
        _adapt_client_files(folder, addresses, authority)
        return
    try:
        with opened(metadata, OPEN) as store:
            unfinished = os.path.join(directory, UNFINISHED)
            begin(unfinished, admin, store)
            login = Login(MECHANISM, admin, secrets.token_urlsafe(PASSWORD_BYTES))
            settings = {**node_settings(directory, admin), "ottla.cluster.secret": secrets.token_hex(SECRET_BYTES)}
            if own is not None:
                settings = {key: value for key, value in settings.items() if not key.startswith("ssl.")}
            texts = {
                **(_certificates(host) if own is None else {}),
                NODE: properties_text(_ABOUT, settings),
                **client_files(ClientSetUp(addresses, authority, login=login)),
            }
            finish(unfinished, folder, texts, admin, login.password, store)
    except (StoreError, CommitUnknownError) as error:
        raise ServeRefusedError(str(error)) from None


def node_settings(directory: str, admin: str) -> dict[str, str]:
    """The settings of each node, except its listener and the secret."""
    folder = os.path.join(directory, FOLDER)
    return {
        "security.inter.broker.protocol": LISTENER,
        **_certificate_settings(folder),
        "sasl.enabled.mechanisms": MECHANISM,
        AUTHORIZER: AUTHORIZERS[0],
        "super.users": f"User:{admin}",
    }


def _certificate_settings(folder: str) -> dict[str, str]:
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": os.path.join(folder, NODE_CERTIFICATE),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": os.path.join(folder, AUTHORITY),
    }


def _certificates(host: str) -> dict[str, str]:
    """A new authority, and a certificate of all nodes. Raises SettingsRefusedError."""
    authority = Authority.made()
    node = issued(authority, tuple(dict.fromkeys((host, *LOCAL_NAMES))))
    return {
        AUTHORITY: authority.itself.certificate,
        AUTHORITY_KEY: authority.itself.key,
        NODE_CERTIFICATE: node.key + node.certificate,
    }


def _adapt_certificate(directory: str, host: str) -> None:
    """Raises SettingsRefusedError, OSError."""
    folder = os.path.join(directory, FOLDER)
    try:
        with open(os.path.join(folder, NODE_CERTIFICATE), "rb") as file:
            certificate = file.read()
    except FileNotFoundError:
        _make_certificate(directory, host)
        return
    try:
        names = hosts_of(certificate)
    except ValueError as error:
        raise SettingsRefusedError(f"The certificate in {folder} can't be used: {error}.") from None
    if host not in names:
        renew(directory, [host])


def _make_certificate(directory: str, host: str) -> None:
    """The operator has brought certificates until now. Raises SettingsRefusedError, OSError."""
    folder = os.path.join(directory, FOLDER)
    path = os.path.join(folder, NODE)
    with open(path, encoding="utf-8") as file:
        before = file.read()
    lacking = [
        f"{key}={value}\n"
        for key, value in _certificate_settings(folder).items()
        if not any(line.startswith(f"{key}=") for line in before.splitlines())
    ]
    replace_file(path, before + "".join(lacking))
    for name, text in _certificates(host).items():
        replace_file(os.path.join(folder, name), text)


def _adapt_client_files(folder: str, bootstrap: str, authority: str) -> None:
    """Raises OSError."""
    wanted = {"bootstrap.servers": bootstrap, "ssl.ca.location": authority, "ssl.truststore.location": authority}
    for name in (CLIENT, JAVA_CLIENT):
        path = os.path.join(folder, name)
        with open(path, encoding="utf-8") as file:
            before = file.read()
        keys = [line.partition("=")[0].strip() for line in before.splitlines()]
        lines = [
            f"{key}={wanted[key]}" if key in wanted else line
            for key, line in zip(keys, before.splitlines(), strict=True)
        ]
        if (after := "".join(f"{each}\n" for each in lines)) != before:
            replace_file(path, after)
