"""Keeps the keys that check clients' tokens up to date: from a file, or from an authorization server.

The keys of a file have to be usable when the node starts. Those of a URL are fetched on a thread; before that,
no client can log in by OAUTHBEARER. They are fetched again every
`sasl.oauthbearer.jwks.endpoint.refresh.ms`, and sooner if a client has a token of an unknown key, but at most every ten
seconds. After a failure, the old keys stay in force, and the wait before the next attempt grows. Keys that could not be
renewed for `STALE_REFRESHES` times that interval are dropped: an attacker who cuts the node off may not keep a revoked
key alive.

Source: Kafka's RefreshingHttpsJwks.java, VerificationKeyResolverFactory.java; KIP-768.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from collections.abc import Callable, Sequence
from functools import partial
from urllib.parse import unquote, urlsplit

from ottla.broker.config.values import BrokerSettings
from ottla.broker.security.jwks import KEY_SET_BYTES_MAX, NO_KEYS, KeySet, KeysRefusedError, key_set_of
from ottla.client.https import FetchFailedError, UrlRefusedError, fetch, place_of
from ottla.server.beside import Beside
from ottla.server.refusals import SettingsRefusedError

OAUTHBEARER = "OAUTHBEARER"
URL = "sasl.oauthbearer.jwks.endpoint.url"
EXPEDITED_S = 10.0
"""Shortest time between two fetches of which the second is for an unknown key."""
STALE_REFRESHES = 24

log = logging.getLogger("ottla.server")


class TokenKeys:
    """The keys of one listener. `changed`: called on the loop with new keys. Raises SettingsRefusedError for settings
    that can't be used."""

    def __init__(self, settings: BrokerSettings, listener: str, changed: Callable[[str, KeySet], None]) -> None:
        def of(name: str) -> object:
            return settings.of_listener(listener, name)

        self.listener = listener
        self._changed = changed
        self._url = str(of(URL) or "")
        self._refresh_s = float(str(of("sasl.oauthbearer.jwks.endpoint.refresh.ms"))) / 1000
        self._first_wait_s = float(str(of("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms"))) / 1000
        self._wait_max_s = float(str(of("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms"))) / 1000
        ca_file = of("ottla.sasl.oauthbearer.ca.location")
        self._ca_file = None if ca_file is None else str(ca_file)
        if not self._url:
            raise self._refused(f"OAUTHBEARER needs {URL}, the keys that check tokens.")
        for name in ("sasl.oauthbearer.expected.issuer", "sasl.oauthbearer.expected.audience"):
            if not of(name):
                raise self._refused(f"OAUTHBEARER needs {name}: without it, tokens for others would be accepted.")
        parts = urlsplit(self._url)
        self._is_file = parts.scheme == "file"
        if self._is_file and parts.netloc:
            raise self._refused(f"{URL} has to be file:///PATH.")
        if not self._is_file:
            try:
                place_of(self._url)
            except UrlRefusedError as refused:
                raise self._refused(f"{URL} can't be used. {refused}") from None
        self._beside = Beside("ottla-keys")
        self._timer: asyncio.TimerHandle | None = None
        self._is_fetching = self._stopped = self._failed = False
        self._begun_at = self._fetched_at = 0.0
        self._wait_s = 0.0
        self.keys = self._of_file() if self._is_file else NO_KEYS

    def _refused(self, why: str) -> SettingsRefusedError:
        return SettingsRefusedError(f"The listener {self.listener} can't be used: {why}")

    def _of_file(self) -> KeySet:
        found = self._read()
        if isinstance(found, str):
            raise self._refused(f"{URL}: {found}.")
        return found

    def start(self) -> None:
        """Begin to fetch, on the running loop."""
        self._fetched_at = asyncio.get_running_loop().time()
        if self._is_file:
            self._later(self._refresh_s)
        else:
            self._fetch()

    def wanted(self) -> None:
        """A client has a token of a key that is not known."""
        now = asyncio.get_running_loop().time()
        if not (self._is_fetching or self._stopped or self._failed) and now - self._begun_at >= EXPEDITED_S:
            self._fetch()

    def stop(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        self._beside.stop()

    def _later(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._fetch)

    def _fetch(self) -> None:
        if self._is_fetching or self._stopped:
            return
        self._is_fetching, self._begun_at = True, asyncio.get_running_loop().time()
        self._beside.run(self._read, self._done)

    def _read(self) -> KeySet | str:
        """The keys, or why there are none. Runs on a thread."""
        try:
            if not self._is_file:
                return key_set_of(fetch(self._url, bytes_max=KEY_SET_BYTES_MAX, ca_file=self._ca_file))
            path = unquote(urlsplit(self._url).path)
            with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    return f"{path} is not a file"
                return key_set_of(file.read(KEY_SET_BYTES_MAX + 1))
        except KeysRefusedError as refused:
            return f"the key set can't be used: {refused}"
        except FetchFailedError as failed:
            return str(failed)
        except OSError as error:
            return f"the key set can't be read: {error.strerror or error}"

    def _done(self, found: KeySet | str) -> None:
        self._is_fetching = False
        if self._stopped:
            return
        now = asyncio.get_running_loop().time()
        if not isinstance(found, str):
            if self._failed:
                log.info("the listener %s has the keys of tokens again", self.listener)
            self._failed, self._wait_s, self._fetched_at = False, 0.0, now
            self._give(found)
            self._later(self._refresh_s)
            return
        if not self._failed:
            log.warning(
                "the keys that check tokens on the listener %s can't be renewed: %s. %s",
                self.listener,
                found,
                "The old ones stay in force." if self.keys else "Clients can't log in by OAUTHBEARER until they are.",
            )
        self._failed = True
        if self.keys and now - self._fetched_at > STALE_REFRESHES * self._refresh_s:
            log.error("the keys that check tokens on the listener %s are too old, and no longer used", self.listener)
            self._give(NO_KEYS)
        self._wait_s = min(self._wait_s * 2 or self._first_wait_s, self._wait_max_s)
        self._later(self._wait_s)

    def _give(self, keys: KeySet) -> None:
        self.keys = keys
        self._changed(self.listener, keys)


def token_keys(
    settings: BrokerSettings, listeners: Sequence[str], changed: Callable[[str, KeySet], None]
) -> dict[str, TokenKeys]:
    """The keys of each of these SASL listeners that has OAUTHBEARER. Raises SettingsRefusedError."""
    enabled = [name for name in listeners if OAUTHBEARER in settings.of_listener(name, "sasl.enabled.mechanisms")]
    make = partial(TokenKeys, settings, changed=changed)
    return {name: make(name) for name in enabled}
