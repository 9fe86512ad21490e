"""Gets tokens for OAUTHBEARER: from a file, or from an authorization server for a client's id and secret.

Objects that get tokens are values: they can be compared, hashed and sent to other processes. Tokens are kept until
`RENEWED_AFTER` of their lifetime, per process.

Sources: RFC 6749, section 4.4 (client credentials); RFC 6750; KIP-768, KIP-1139; the properties of librdkafka.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, cast
from urllib.parse import quote, unquote, urlencode, urlsplit

from ottla.client.errors import ClientError
from ottla.client.https import FetchFailedError, UrlRefusedError, fetch, place_of

URL = "sasl.oauthbearer.token.endpoint.url"
CLIENT_IDS = ("sasl.oauthbearer.client.credentials.client.id", "sasl.oauthbearer.client.id")
CLIENT_SECRETS = ("sasl.oauthbearer.client.credentials.client.secret", "sasl.oauthbearer.client.secret")
SCOPE = "sasl.oauthbearer.scope"
CA_FILE = "https.ca.location"
URL_ENCODED = "sasl.oauthbearer.header.urlencode"
METHOD = "sasl.oauthbearer.method"
HANDLER = "sasl.login.callback.handler.class"
PROPERTIES = (URL, *CLIENT_IDS, *CLIENT_SECRETS, SCOPE, CA_FILE, URL_ENCODED, METHOD, HANDLER)
"""Client properties about tokens: Kafka's names, and librdkafka's where they differ."""
ANSWER_BYTES_MAX = 1 << 18
RENEWED_AFTER = 0.8
_TOKEN = re.compile(r"[A-Za-z0-9_.~+/=-]+")
_KEPT_MAX = 100

Tokens: TypeAlias = Callable[[], str]
"""Returns a token; called for each login, and again before a session ends."""


class WrongTokensError(ValueError):
    """The client properties do not say how to get a token; the text is one sentence."""


class _Kept(NamedTuple):
    token: str
    until: float


_kept: dict[object, _Kept] = {}
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class TokenFile:
    """Reads the token of a file, which another program renews. Only a text of a token's characters is sent."""

    path: str

    def __call__(self) -> str:
        try:
            with open(self.path, encoding="utf-8") as file:
                text = file.read(ANSWER_BYTES_MAX).strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ClientError(f"The token in {self.path} cannot be read: {error}.") from None
        if not _TOKEN.fullmatch(text):
            raise ClientError(f"{self.path} does not hold a token.")
        return text


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    """Asks an authorization server for a token, by a client's id and secret. `ca_file`: the authorities that it is
    checked by, as PEM (default: the system's). `url_encoded`: id and secret are encoded as RFC 6749 has it, and as most
    servers do not expect it."""

    url: str
    client_id: str
    secret: str = field(repr=False)
    scope: str = ""
    ca_file: str | None = None
    url_encoded: bool = False

    def __call__(self) -> str:
        with _lock:
            known = _kept.get(self)
            if known is None or time.monotonic() >= known.until:
                if len(_kept) >= _KEPT_MAX:
                    _kept.clear()
                known = _kept[self] = self._asked()
            return known.token

    def _asked(self) -> _Kept:
        who = (quote(self.client_id, ""), quote(self.secret, "")) if self.url_encoded else (self.client_id, self.secret)
        form = {"grant_type": "client_credentials"} | ({"scope": self.scope} if self.scope else {})
        headers = {
            "Authorization": "Basic " + base64.b64encode(":".join(who).encode()).decode(),
            "Content-Type": "application/x-www-form-urlencoded",
        }
        try:
            answer = fetch(
                self.url,
                bytes_max=ANSWER_BYTES_MAX,
                ca_file=self.ca_file,
                body=urlencode(form).encode(),
                headers=headers,
            )
            read = json.loads(answer)
        except (FetchFailedError, UrlRefusedError) as failed:
            raise ClientError(f"The authorization server gives no token: {failed}.") from None
        except (ValueError, RecursionError):
            read = None
        found = cast("dict[str, Any]", read if isinstance(read, dict) else {})
        token, lifetime_s = found.get("access_token"), found.get("expires_in")
        if not isinstance(token, str) or not _TOKEN.fullmatch(token):
            raise ClientError(f"The answer of {self.url} has no token.")
        if not isinstance(lifetime_s, int | float):
            lifetime_s = max(0.0, expiry_of(token) - time.time())
        return _Kept(token, time.monotonic() + lifetime_s * RENEWED_AFTER)


def expiry_of(token: str) -> float:
    """When a JWT expires by its own words, in seconds since 1970; in five minutes if it does not say. Not verified."""
    parts = token.split(".")
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return float(claims["exp"])
    except (IndexError, KeyError, TypeError, ValueError, RecursionError, binascii.Error):
        return time.time() + 300


def tokens_of(given: Mapping[str, str], options: Mapping[str, str]) -> Tokens:
    """How to get a token, by client properties and the options of `sasl.jaas.config`. Raises WrongTokensError."""
    handler = given.get(HANDLER, "")
    if handler and not handler.endswith(".OAuthBearerLoginCallbackHandler"):
        raise WrongTokensError(f"{HANDLER} can only be Kafka's OAuthBearerLoginCallbackHandler, not {handler!r}.")
    url = given.get(URL, "")
    if not url:
        raise WrongTokensError(f"OAUTHBEARER needs {URL}: an https:// URL, or file:///PATH of a file with a token.")
    parts = urlsplit(url)
    if parts.scheme == "file":
        if parts.netloc or not parts.path:
            raise WrongTokensError(f"{URL} must be file:///PATH, not {url!r}.")
        return TokenFile(unquote(parts.path))
    try:
        place_of(url)
    except UrlRefusedError as refused:
        raise WrongTokensError(f"{URL} cannot be used. {refused}") from None
    client_id = _first(given, CLIENT_IDS) or options.get("clientId")
    secret = _first(given, CLIENT_SECRETS) or options.get("clientSecret")
    if not client_id or not secret:
        raise WrongTokensError(f"OAUTHBEARER needs {CLIENT_IDS[0]} and {CLIENT_SECRETS[0]}.")
    return ClientCredentials(
        url,
        client_id,
        secret,
        given.get(SCOPE) or options.get("scope", ""),
        given.get(CA_FILE),
        given.get(URL_ENCODED, "").lower() == "true",
    )


def _first(given: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((given[name] for name in names if given.get(name)), None)
