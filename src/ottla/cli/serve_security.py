"""Translates the security options of `ottla serve` into Kafka's own settings.

    --tls-cert, --tls-key, --tls-ca    ssl.keystore.location, ottla.ssl.key.location, ssl.truststore.location
    --sasl                             sasl.enabled.mechanisms
    --add-user                         super.users and authorizer.class.name, unless they are set; and the user

Listeners without a name get the security protocol that the options make.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ottla.cli.server_properties import NotServedError

if TYPE_CHECKING:
    import argparse

    from ottla.metadata.store import MetadataStore

KEYSTORE, KEY, TRUSTED = "ssl.keystore.location", "ottla.ssl.key.location", "ssl.truststore.location"
CLIENT_AUTH, MECHANISMS, SUPER_USERS = "ssl.client.auth", "sasl.enabled.mechanisms", "super.users"
OF_TLS = {"tls_cert": KEYSTORE, "tls_key": KEY, "tls_ca": TRUSTED}


def add_options(group: argparse._ArgumentGroup) -> None:  # pyright: ignore[reportPrivateUsage]
    add = group.add_argument
    add("--tls-cert", metavar="FILE", help="PEM file with the node's certificate chain; turns TLS on (default: none)")
    add("--tls-key", metavar="FILE", help="PEM file with the node's private key (default: the one of --tls-cert)")
    add("--tls-ca", metavar="FILE", help="PEM file of authorities; clients need a certificate of one (default: none)")
    add("--sasl", metavar="MECHANISM,...", help="how clients log in, for example scram-sha-512 (default: no login)")
    add("--add-user", metavar="NAME", help="first user of a new node, who may do everything (default: none)")
    where = "file with the password of --add-user (default: the variable OTTLA_PASSWORD, otherwise a prompt)"
    add("--password-file", metavar="FILE", help=where)


def secure(given: argparse.Namespace, settings: dict[str, str]) -> str | None:
    """Add the settings of the options; returns the security protocol of listeners without a name, None if the options
    make none. Raises NotServedError."""
    options = [name for name in (*OF_TLS, "sasl") if getattr(given, name) is not None]
    for name in options:
        if not getattr(given, name):
            raise NotServedError(f"{_option(name)} is empty: give it a value, or leave the option out.")
    if options and not given.listen and settings.get("listeners", "").strip():
        raise NotServedError(
            f"{_option(options[0])} and listeners both say what a listener speaks: remove one of them, or name the "
            "address with --listen."
        )
    for name, key in OF_TLS.items():
        if path := getattr(given, name):
            if not given.tls_cert:
                raise NotServedError(f"{_option(name)} needs --tls-cert FILE.")
            _set(settings, key, path, _option(name))
    if given.tls_ca:
        settings.setdefault(CLIENT_AUTH, "required")
    if given.sasl:
        _set(settings, MECHANISMS, ",".join(_mechanisms(given.sasl)), "--sasl")
    if not options:
        return None
    protocol = "SSL" if given.tls_cert else "PLAINTEXT"
    return f"SASL_{protocol}" if given.sasl else protocol


class FirstUser:
    """Adds the user of --add-user, before the node reads its metadata. The password is read only if it is needed."""

    def __init__(self, name: str, password_file: str | None) -> None:
        self.name, self._password_file = name, password_file

    def __call__(self, store: MetadataStore) -> None:
        """Raises SettingsRefusedError if there is no password."""
        from ottla.server.users import add_first_user

        add_first_user(store, self.name, self._password)

    def _password(self) -> str:
        from pathlib import Path  # a node that asks for no password starts without it

        from ottla.cli.output import CommandError
        from ottla.cli.users import password_of
        from ottla.server.refusals import SettingsRefusedError

        try:
            return password_of(None if self._password_file is None else Path(self._password_file))
        except CommandError as failure:
            raise SettingsRefusedError(str(failure)) from None


def first_user(given: argparse.Namespace, settings: dict[str, str], listen: Sequence[str]) -> FirstUser | None:
    """The user of --add-user, who becomes a super user unless the settings name others. Raises NotServedError."""
    from ottla.broker.config.unserved import AUTHORIZER, AUTHORIZERS, protocols_of

    if given.add_user is None:
        if given.password_file is not None:
            raise NotServedError("--password-file is for the user of --add-user NAME.")
        return None
    if not given.add_user or ";" in given.add_user:
        raise NotServedError("The name of --add-user can't be empty, and can't contain a semicolon.")
    protocols = protocols_of(settings.get("listener.security.protocol.map", ""))
    names = [text.partition("://")[0].upper() for text in listen if "://" in text]
    if not any(protocols.get(name, name).startswith("SASL") for name in names):
        raise NotServedError("--add-user needs a listener on which users log in: add --sasl scram-sha-512.")
    if settings.setdefault(AUTHORIZER, AUTHORIZERS[0]):
        settings.setdefault(SUPER_USERS, f"User:{given.add_user}")
    return FirstUser(given.add_user, given.password_file)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _set(settings: dict[str, str], key: str, value: str, option: str) -> None:
    if settings.get(key, value) != value:
        raise NotServedError(f"{option} and {key} differ: {key} is {settings[key]}. Remove one of them.")
    settings[key] = value


def _mechanisms(text: str) -> list[str]:
    from ottla.broker.config import unserved

    named = [each.strip().upper() for each in text.split(",") if each.strip()]
    unknown = [each for each in named if each not in unserved.MECHANISMS]
    if unknown or not named:
        known = ", ".join(each.lower() for each in unserved.MECHANISMS)
        raise NotServedError(f"--sasl can name {known}, not {', '.join(unknown) or 'nothing'}.")
    return named
