"""Describes how a session with ZooKeeper is protected: TLS, a login, and access to the znodes.

A login is ZooKeeper's `digest` scheme: a user and a password that all nodes of a cluster share. The password itself
goes to the server, so it needs TLS. With `private`, every znode that a session creates is for this login alone, because
rows hold credentials and the secret of the cluster. `KazooClient` gets it all as options.

Sources: ZooKeeper's "Access Control using ACLs", DigestAuthenticationProvider.java; kazoo's KazooClient.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Protection:
    """How sessions are protected.

    - `uses_tls`, `authorities`: a PEM file with the trusted authorities (default: the system's). `certificate`: a PEM
      file with this node's key and certificate, if the servers ask for one.
    - `login`: USER:PASSWORD, empty for none.
    - `private`: znodes are for the login alone.
    """

    uses_tls: bool = False
    authorities: str | None = None
    certificate: str | None = None
    checks_hostname: bool = True
    login: str = field(default="", repr=False)
    private: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of a KazooClient."""
        found: dict[str, Any] = {}
        if self.uses_tls:
            found |= {"use_ssl": True, "verify_certs": True, "check_hostname": self.checks_hostname}
            found |= {"ca": self.authorities, "certfile": self.certificate, "keyfile": self.certificate}
        if self.login:
            found["auth_data"] = [("digest", self.login)]
        if self.private:
            from kazoo.security import CREATOR_ALL_ACL  # pyright: ignore[reportMissingImports]

            found["default_acl"] = CREATOR_ALL_ACL
        return found


OPEN: Final = Protection()
"""No protection: everyone who reaches the servers can read and write."""
