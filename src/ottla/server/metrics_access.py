"""Decides who may read the metrics port: TLS, and a bearer token from a file that only the node's user can read.

With `ottla.metrics.security.protocol=SSL` the port speaks HTTPS with the certificate of `ssl.*`. Settings behind
`listener.name.metrics.` replace them for this port alone: another certificate, or `ssl.client.auth=required`.

`/metrics` and `/share-groups` need the token, if there is one. `/share-groups` shows which client works on which
records. A node with an authorizer refuses it: a token does not say who asks, so no ACL could decide, and
DescribeSharePartitions shows the same under ACLs. `/healthz` and `/readyz` are for supervisors, and need no token;
`/readyz` names no partitions then.

The files are read again when they change. A token that can't be used leaves the old one in force.

Source: RFC 6750.
"""

from __future__ import annotations

import hmac
import logging
import os

from ottla.broker.config.values import BrokerSettings
from ottla.loopback import is_loopback
from ottla.server.listeners import refuse_public
from ottla.server.refusals import SettingsRefusedError
from ottla.server.secret_files import read_secret
from ottla.server.tls import Tls
from ottla.server.tls_settings import TlsSettings

LISTENER = "METRICS"
TOKEN_MIN = 16
TOKEN_BYTES_MAX = 4096
PROBES = ("/healthz", "/readyz")
SHARE_GROUPS = "/share-groups"

log = logging.getLogger("ottla.server")


class MetricsAccess:
    """The access rules of the metrics port. Raises SettingsRefusedError for settings that can't be used, and for a port
    that other machines can reach without being asked for a token or a certificate."""

    def __init__(self, settings: BrokerSettings, host: str) -> None:
        self._path: str | None = settings["ottla.metrics.token.location"]
        self._token, self._seen = b"", None
        self.refusal_delay_s: float = settings["connection.failed.authentication.delay.ms"] / 1000
        """How late a client without the token gets its answer."""
        self.tls: Tls | None = None
        if settings["ottla.metrics.security.protocol"] == "SSL":
            self.tls = Tls(TlsSettings(settings, LISTENER))
        asks = self._path or settings.of_listener(LISTENER, "ssl.client.auth") == "required"
        if self.tls is None or not asks:
            lacks = [] if self.tls is not None else ["TLS (ottla.metrics.security.protocol=SSL)"]
            lacks += [] if asks else ["token (ottla.metrics.token.location)"]
            why = f"the metrics port has no {' and no '.join(lacks)}"
            refuse_public(host, settings["ottla.allow.public.plaintext"], why)
        if self._path and self.tls is None and not is_loopback(host):
            log.warning("The token of the metrics port goes over the network in the clear: the port has no TLS.")
        if self._path:
            self._read_token(self._path)

    @property
    def needs_token(self) -> bool:
        return self._path is not None

    def refusal(self, path: str, authorization: bytes, *, has_authorizer: bool) -> tuple[str, str] | None:
        """(HTTP status, why) for a request that is not allowed; None for one that is. `authorization`: the header's
        value, empty without one. `has_authorizer`: whether the node decides what clients may do."""
        if path in PROBES:
            return None
        if self.needs_token and not self._is_right(authorization):
            return "401 Unauthorized", "This needs the header Authorization: Bearer TOKEN."
        if has_authorizer and path.startswith(SHARE_GROUPS):
            return "403 Forbidden", (
                "This shows what clients work on, and the node has an authorizer, which can't know who asks here. Use "
                "`ottla share-groups inspect GROUP`: it needs Describe on the group and on its topics."
            )
        return None

    def _is_right(self, authorization: bytes) -> bool:
        scheme, _, given = authorization.partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(given.strip(), self._token)

    def reload(self) -> bool:
        """Use a changed token; whether the TLS has changed too. A file that can't be used is logged, once."""
        try:
            if self._path and self._version(self._path) != self._seen:
                self._read_token(self._path)
                log.info("the metrics port uses a new token")
        except SettingsRefusedError as refused:
            log.warning("%s The old token stays in force.", refused)
        try:
            return self.tls is not None and self.tls.reload()
        except SettingsRefusedError as refused:
            log.warning("%s The old certificate stays in force.", refused)
            return False

    def _version(self, path: str) -> tuple[int, int, int, int] | None:
        try:
            status = os.stat(path)
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size, status.st_mode

    def _read_token(self, path: str) -> None:
        self._seen = self._version(path)
        token = read_secret(path, "the token of the metrics port", TOKEN_BYTES_MAX + 1)
        if not TOKEN_MIN <= len(token) <= TOKEN_BYTES_MAX or not all(33 <= octet < 127 for octet in token):
            raise SettingsRefusedError(
                f"{path} has to hold one token for the metrics port: {TOKEN_MIN} characters or more, without spaces, "
                "for example from `openssl rand -hex 32`."
            )
        self._token = token
