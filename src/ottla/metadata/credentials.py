"""Defines the rows of SCRAM credentials: what is stored of users' passwords.

    scram/["SCRAM-SHA-512", "ada"]    {"salt": "...", "stored_key": "...", "server_key": "...", "iterations": 8192}

Bytes are Base64. A row does not let anyone log in, but weak passwords can be guessed from it; stores keep it private.

Source: Kafka's UserScramCredentialRecord, ScramCredential.java; RFC 5802; KIP-554.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple, TypeAlias, cast

from ottla.metadata.row_kinds import RowKind, Rows

PREFIX: Final = "scram/"


class ScramCredential(NamedTuple):
    """The stored form of a password. `iterations`: rounds of PBKDF2."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def encode(self) -> bytes:
        salt, stored_key, server_key = (base64.b64encode(each).decode() for each in self[:3])
        fields = {"salt": salt, "stored_key": stored_key, "server_key": server_key, "iterations": self.iterations}
        return json.dumps(fields).encode()

    def __repr__(self) -> str:
        """Without the keys: this is printed in logs and tracebacks."""
        return f"ScramCredential(iterations={self.iterations})"


def credential_of(mechanism: str, password: str, iterations: int | None = None) -> ScramCredential:
    """A new credential for a password, of `scram.ITERATIONS` unless told otherwise. Takes milliseconds."""
    import secrets  # a node starts without these

    from ottla.protocol.scram import ITERATIONS, SALT_BYTES, keys_of, salted

    salt = secrets.token_bytes(SALT_BYTES)
    rounds = ITERATIONS if iterations is None else iterations
    keys = keys_of(mechanism, salted(mechanism, password.encode(), salt, rounds))
    return ScramCredential(salt, *keys, rounds)


def decode(value: bytes) -> ScramCredential:
    """The credential in a row's value. Raises ValueError, KeyError or TypeError for a damaged one."""
    fields = json.loads(value)
    salt, stored_key, server_key = (base64.b64decode(fields[name]) for name in ("salt", "stored_key", "server_key"))
    return ScramCredential(salt, stored_key, server_key, int(fields["iterations"]))


def key_of(user: str, mechanism: str) -> str:
    """The key of a credential's row."""
    return PREFIX + json.dumps([mechanism, user], ensure_ascii=False)


Credentials: TypeAlias = Mapping[str, Mapping[str, ScramCredential]]
"""By user, and then by mechanism."""


def _record(value: bytes, name: str, _part: Credentials) -> ScramCredential:
    mechanism, user = json.loads(name)
    if not (isinstance(mechanism, str) and isinstance(user, str)):
        raise TypeError(f"{name} names no credential")
    return decode(value)


def _changed(part: Credentials, rows: Rows) -> Credentials:
    new = dict(part)
    for name, row in rows.items():
        mechanism, user = cast("list[str]", json.loads(name))
        of_user = dict(new.pop(user, {}))
        of_user.pop(mechanism, None)
        if row is not None:
            of_user[mechanism] = cast("ScramCredential", row.record)
        if of_user:
            new[user] = of_user
    return new


def _row_names(part: Credentials) -> Collection[str]:
    return [key_of(user, mechanism).removeprefix(PREFIX) for user, known in part.items() for mechanism in known]


_EMPTY: Credentials = {}
CREDENTIALS: Final[RowKind[Credentials]] = RowKind(PREFIX, _record, _changed, _row_names, _EMPTY)
"""The SCRAM credentials of all users."""
