"""Reads the settings that protect a node's session with ZooKeeper: Kafka's `zookeeper.*`, as PEM, and a login.

A setting that would protect nothing is refused: one without a ZooKeeper, or private znodes without a login.

Sources: Kafka 3.9's ZkConfigs.java, and "ZooKeeper authentication" in its documentation.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Final

from ottla.broker.config.values import BrokerSettings
from ottla.server.refusals import SettingsRefusedError

if TYPE_CHECKING:
    from ottla.metadata.zookeeper.protection import Protection

ENABLED: Final = "zookeeper.ssl.client.enable"
PRIVATE: Final = "zookeeper.set.acl"
LOGIN: Final = "ottla.zookeeper.login.location"
LOGIN_BYTES_MAX: Final = 4096


def refuse_unused(settings: BrokerSettings) -> None:
    """Raise SettingsRefusedError for settings that protect a session with ZooKeeper, on a node that has none."""
    for name in (ENABLED, PRIVATE, LOGIN):
        if settings[name]:
            raise SettingsRefusedError(
                f"{name} would protect nothing: this node keeps its metadata in a file. --metadata zookeeper://... "
                "keeps it in ZooKeeper."
            )


def protection_of(settings: BrokerSettings) -> Protection:
    """How this node's sessions are protected. Raises SettingsRefusedError."""
    from ottla.metadata.zookeeper.protection import Protection  # a node without ZooKeeper starts without it

    login = settings[LOGIN]
    if settings[PRIVATE] and not login:
        raise SettingsRefusedError(
            f"{PRIVATE} needs {LOGIN}: the znodes are for one login alone, which all nodes of the cluster share."
        )
    found = Protection(
        uses_tls=settings[ENABLED],
        authorities=settings["zookeeper.ssl.truststore.location"],
        certificate=settings["zookeeper.ssl.keystore.location"],
        checks_hostname=settings["zookeeper.ssl.endpoint.identification.algorithm"].upper() == "HTTPS",
        login=_login(login) if login else "",
        private=settings[PRIVATE],
    )
    if not found.uses_tls and (found.authorities or found.certificate):
        raise SettingsRefusedError(f"zookeeper.ssl.* would protect nothing without {ENABLED}=true.")
    _check(found)
    return found


def _check(found: Protection) -> None:
    """Raise SettingsRefusedError for files that can't be used: kazoo would try again and again."""
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if found.authorities:
            context.load_verify_locations(found.authorities)
        if found.certificate:
            context.load_cert_chain(found.certificate, password="")
    except OSError as error:  # ssl.SSLError too
        path = found.certificate if found.authorities is None else f"{found.authorities} or {found.certificate}"
        raise SettingsRefusedError(f"{path} can't be used for TLS with ZooKeeper: {error.strerror or error}.") from None


def _login(path: str) -> str:
    from ottla.server.secret_files import read_secret

    try:
        text = read_secret(path, "the login for ZooKeeper", LOGIN_BYTES_MAX).decode()
    except UnicodeDecodeError as error:
        raise SettingsRefusedError(f"{path}, the login for ZooKeeper, can't be read: {error}.") from None
    user, colon, password = text.partition(":")
    if not (user and colon and password) or "\n" in text:
        raise SettingsRefusedError(f"{path} has to hold the login for ZooKeeper as USER:PASSWORD.")
    return text
