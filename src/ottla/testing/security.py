"""Secures a broker for tests: certificates of an authority of its own, users, ACLs, and what their clients need.

`Security` checks what a test asks for, makes the files, and gives the settings of a node and the set-up of each client.
Users and ACLs are rows that are written to the metadata store before the node reads it, so a started broker knows all
of them.
"""

from __future__ import annotations

import re
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from ottla import private
from ottla.broker.config.unserved import AUTHORIZER, AUTHORIZERS
from ottla.client.sasl import PLAIN, Login
from ottla.client.set_up import ClientSetUp
from ottla.metadata.acls import WILDCARD, AclBinding
from ottla.metadata.credentials import credential_of, key_of
from ottla.metadata.store import MetadataStore, Put
from ottla.protocol.acls import CLUSTER_NAME, Operation, PatternType, PermissionType, ResourceType
from ottla.protocol.scram import DIGESTS, ITERATIONS_MIN

if TYPE_CHECKING:
    from ottla.server.authority import Issued

ADMIN: Final = "admin"
"""The user that the broker itself adds: it may do everything."""
MUTUAL: Final = "mutual"
NAMES: Final = ("127.0.0.1", "localhost")
"""In the certificate of a node."""
SASL: Final = {each.lower(): each for each in (*DIGESTS, PLAIN)}
"""Mechanisms by the names that tests give."""
_CERTIFIED_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_OPERATIONS: Final = {each.name.lower().replace("_", "-"): each for each in Operation}

Tls = bool | Literal["mutual"]


@dataclass(frozen=True, slots=True)
class Acl:
    """Allows a user an operation, or with `deny` forbids it: `Acl("ada", "read", topic="orders", group="billing")`.

    `user`: a name, or `*` for every user. `operation`: as `ottla acls add --operation` has it, for example "write" or
    "alter-configs". Each resource that is named makes an ACL of its own; `*` is every name. `prefix`: the names are
    prefixes of the names that are meant. `host`: the address of the client. Raises ValueError.
    """

    user: str
    operation: str
    topic: str | None = field(default=None, kw_only=True)
    group: str | None = field(default=None, kw_only=True)
    transactional_id: str | None = field(default=None, kw_only=True)
    cluster: bool = field(default=False, kw_only=True)
    prefix: bool = field(default=False, kw_only=True)
    deny: bool = field(default=False, kw_only=True)
    host: str = field(default=WILDCARD, kw_only=True)

    def __post_init__(self) -> None:
        if self.operation not in _OPERATIONS:
            raise ValueError(f"There is no operation {self.operation!r}: choose from {', '.join(_OPERATIONS)}.")
        if not list(self.bindings()):
            raise ValueError(f"{self!r} names no resource: topic=, group=, transactional_id= or cluster=True.")

    def bindings(self) -> Iterator[AclBinding]:
        """An ACL for each resource."""
        pattern = PatternType.PREFIXED if self.prefix else PatternType.LITERAL
        permission = PermissionType.DENY if self.deny else PermissionType.ALLOW
        for kind, name in (
            (ResourceType.TOPIC, self.topic),
            (ResourceType.GROUP, self.group),
            (ResourceType.TRANSACTIONAL_ID, self.transactional_id),
            (ResourceType.CLUSTER, CLUSTER_NAME if self.cluster else None),
        ):
            if name is not None:
                found = PatternType.LITERAL if kind is ResourceType.CLUSTER else pattern
                operation = _OPERATIONS[self.operation]
                yield AclBinding(kind, found, name, f"User:{self.user}", self.host, operation, permission)


class Security:
    """The security of a test's broker. Raises ValueError for arguments that contradict each other.

    `tls`, `sasl`, `users`, `acls`: as `EmbeddedBroker` has them.
    """

    def __init__(
        self,
        tls: Tls,
        sasl: str | None,
        users: Mapping[str, str] | Iterable[str],
        acls: Iterable[Acl] | None,
    ) -> None:
        if tls not in (False, True, MUTUAL):
            raise ValueError(f"tls can be False, True or {MUTUAL!r}, not {tls!r}.")
        if sasl is not None and sasl.lower() not in SASL:
            raise ValueError(f"sasl can be {', '.join(map(repr, SASL))}, not {sasl!r}.")
        if isinstance(users, str):
            raise ValueError(f"users is a list of names, or passwords by name, not {users!r}.")
        given = dict(users) if isinstance(users, Mapping) else {}
        self.tls, self.mechanism = tls, None if sasl is None else SASL[sasl.lower()]
        self.acls = None if acls is None else tuple(acls)
        self.users = [*users]
        self._passwords = {name: given.get(name) or secrets.token_urlsafe() for name in (*self.users, ADMIN)}
        self._folder: str | None = None
        self._check(given)

    def _check(self, passwords: Mapping[str, str]) -> None:
        if not self.knows_clients:
            for name, asked in (("users", self.users), ("acls", self.acls is not None)):
                if asked:
                    raise ValueError(f"{name} needs a way to tell clients apart: sasl=..., or tls={MUTUAL!r}.")
        if passwords and self.mechanism is None:
            raise ValueError("Passwords need sasl=...; with certificates alone, users is a list of names.")
        if ADMIN in self.users:
            raise ValueError(f"{ADMIN} is the broker's own user, who may do everything: choose another name.")
        for name in self.users if self.tls == MUTUAL else ():
            if not _CERTIFIED_NAME.fullmatch(name):
                raise ValueError(f"{name!r} can't be in a certificate here: use letters, digits, dots and hyphens.")
        for acl in self.acls or ():
            if acl.user not in (*self.users, WILDCARD):
                raise ValueError(f"{acl!r} names a user who is not in users.")

    @property
    def knows_clients(self) -> bool:
        """Whether clients have names: by SASL, or by certificates."""
        return self.mechanism is not None or self.tls == MUTUAL

    @property
    def protocol(self) -> str:
        """The security protocol of the listener for clients."""
        protocol = "SSL" if self.tls else "PLAINTEXT"
        return protocol if self.mechanism is None else f"SASL_{protocol}"

    @property
    def is_on(self) -> bool:
        return bool(self.tls) or self.mechanism is not None

    # ---- files -----------------------------------------------------------------------------------------------------

    def make_files(self) -> None:
        """Make the certificates, in a temporary directory; once until `remove_files`."""
        if not self.tls or self._folder is not None:
            return
        from ottla.server.authority import Authority

        self._folder = tempfile.mkdtemp(prefix="ottla-security-")
        authority = Authority.made()
        private.write(self._file("ca"), authority.itself.certificate)
        private.write(self._file("node"), _pem(authority.issue(NAMES)))
        if self.tls == MUTUAL:
            for name in (*self.users, ADMIN):
                private.write(self._file("client", name), _pem(authority.issue_client(name)))

    def remove_files(self) -> None:
        folder, self._folder = self._folder, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def _file(self, *words: str) -> str:
        if self._folder is None:
            raise RuntimeError("There are no certificates yet: the broker has not been started.")
        return str(Path(self._folder, f"{'-'.join(words)}.pem"))

    # ---- the node --------------------------------------------------------------------------------------------------

    def settings(self) -> dict[str, str]:
        """The node's settings, by Kafka's names. Its files have to be made."""
        found: dict[str, str] = {}
        if self.tls:
            found["ssl.keystore.location"] = self._file("node")
        if self.tls == MUTUAL:
            found["ssl.client.auth"] = "required"
            found["ssl.truststore.location"] = self._file("ca")
            found["ssl.principal.mapping.rules"] = "RULE:^CN=([^,]*)$/$1/"
        if self.mechanism is not None:
            found["sasl.enabled.mechanisms"] = self.mechanism
        if self.knows_clients:
            found[AUTHORIZER] = "" if self.acls is None else AUTHORIZERS[0]
        if self.acls is not None:
            found["super.users"] = f"User:{ADMIN}"
        return found

    def refuse(self, settings: Iterable[str]) -> None:
        """Raise ValueError for settings that the arguments set already."""
        if not self.is_on:
            return
        ours = ("ssl.", "sasl.", "listener.", AUTHORIZER, "super.users", "allow.everyone.if.no.acl.found")
        if named := [name for name in settings if name.startswith(ours)]:
            raise ValueError(
                f"{', '.join(named)} can't be one of the settings beside tls, sasl and acls, which set it."
            )

    def write_rows(self, store: MetadataStore) -> None:
        """Write the users and the ACLs to the metadata store, over older ones."""
        rows: list[Put] = []
        if self.mechanism is not None:
            for name, password in self._passwords.items():
                for mechanism in DIGESTS if self.mechanism == PLAIN else (self.mechanism,):
                    credential = credential_of(mechanism, password, ITERATIONS_MIN)
                    rows.append(Put(key_of(name, mechanism), credential.encode()))
        rows += [Put(binding.key, binding.encode()) for acl in self.acls or () for binding in acl.bindings()]
        if rows:
            store.commit(list({row.key: row for row in rows}.values()))

    # ---- clients ---------------------------------------------------------------------------------------------------

    def client(self, bootstrap: str, user: str | None) -> ClientSetUp:
        """How a user's clients connect; None for the admin. Raises ValueError for an unknown user."""
        if user is not None and user not in (*self.users, ADMIN):
            raise ValueError(f"The broker has no user {user}: it has {', '.join((*self.users, ADMIN))}.")
        name = user or ADMIN
        login = None if self.mechanism is None else Login(self.mechanism, name, self._passwords[name])
        certificate = self._file("client", name) if self.tls == MUTUAL else None
        return ClientSetUp(bootstrap, self._file("ca") if self.tls else None, certificate, login)


def _pem(issued: Issued) -> str:
    return issued.key + issued.certificate
