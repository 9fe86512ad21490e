"""Stores and removes the passwords of users (SCRAM credentials), for any Kafka that has SCRAM.

The password does not leave the client: it sends what SCRAM stores. KIP-554, RFC 5802.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable

from ottla.client.client import Client
from ottla.client.errors import check
from ottla.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from ottla.protocol.scram import ITERATIONS, MECHANISMS, SALT_BYTES, salted


def set_password(client: Client, name: str, password: str) -> None:
    """Store the credentials of a password for each mechanism. Raises ClientError.

    A request may name a user only once, so it takes a request for each.
    """
    for code, mechanism in MECHANISMS.items():
        salt = secrets.token_bytes(SALT_BYTES)
        key = salted(mechanism, password.encode(), salt, ITERATIONS)
        change = ScramCredentialUpsertion(name, code, ITERATIONS, salt, key)
        (result,) = client.send(AlterUserScramCredentialsRequest(upsertions=[change])).results
        check(result.error_code, f"user {name}", result.error_message)


def remove_passwords(client: Client, name: str, mechanisms: Iterable[str]) -> None:
    """Delete a user's credentials for these mechanisms. Raises ClientError."""
    known = set(mechanisms)
    for code, mechanism in MECHANISMS.items():
        if mechanism in known:
            deletion = ScramCredentialDeletion(name, code)
            (result,) = client.send(AlterUserScramCredentialsRequest([deletion])).results
            check(result.error_code, f"user {name}", result.error_message)
