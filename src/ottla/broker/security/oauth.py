"""Authenticates clients by OAUTHBEARER: a token that an authorization server has signed.

The client's first message has the token, a JSON Web Token (JWT), behind `auth=Bearer`:

    n,a=ada,^Aauth=Bearer eyJhbGci...^Atraceparent=1^A^A        ^A is the byte 1

The signature is checked with the key that the token's `kid` and `alg` name together (`jwks.KeySet`). The token needs
the right issuer, audience, subject, expiry and time of issue; the clocks may differ by the allowed skew. If a check
fails, the client gets `{"status":"invalid_token"}`, sends one more message, and is refused. A token without a known key
makes the host fetch the keys again.

The session lasts as long as the token: the client has to authenticate again before (KIP-368).

Sources: RFC 7628, RFC 6750, RFC 7519, RFC 8725; Kafka's OAuthBearerSaslServer.java, BrokerJwtValidator.java,
OAuthBearerClientInitialResponse.java; KIP-255, KIP-768.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple, cast

from ottla.broker.security.jwks import KeySet
from ottla.broker.security.scram import AuthenticationError

TOKEN_BYTES_MAX: Final = 1 << 16
SUBJECT_MAX: Final = 1000
INVALID: Final = b'{"status":"invalid_token"}'
"""The challenge for every token that is refused."""

_FIRST: Final = re.compile(
    rb"n,(?:a=(?P<authzid>[^,\x01]*))?,\x01(?P<pairs>(?:[A-Za-z]+=[^\x01]*\x01)+)\x01", re.DOTALL
)
_BEARER: Final = re.compile(r"bearer +([A-Za-z0-9_.~+/=-]+)", re.IGNORECASE)


class TokenRules(NamedTuple):
    """The tokens that a listener accepts. `audiences`: a token has to name one of them. `scope_claim`: has the scopes,
    which are checked for their form only."""

    issuer: str
    audiences: tuple[str, ...]
    subject_claim: str
    scope_claim: str
    skew_s: int


class Token(NamedTuple):
    """A token that was checked. `expires_ms`: a timestamp."""

    subject: str
    expires_ms: int


class TokenRefusedError(Exception):
    """The token is not accepted; the message says why, without the token. `is_unknown`: no key for it is known now."""

    def __init__(self, why: str, *, is_unknown: bool = False) -> None:
        super().__init__(why)
        self.is_unknown = is_unknown


def check_token(text: str, keys: KeySet, rules: TokenRules, now_ms: int) -> Token:
    """The token, if its signature and its claims are right. Raises TokenRefusedError."""
    return _checked_claims(_signed_claims(text, keys), rules, now_ms)


def _signed_claims(text: str, keys: KeySet) -> dict[str, Any]:
    """The claims of a token whose signature is right."""
    import jwt

    if len(text) > TOKEN_BYTES_MAX:
        raise TokenRefusedError(f"the token has more than {TOKEN_BYTES_MAX} characters")
    try:
        header = jwt.get_unverified_header(text)
        kid, algorithm = header.get("kid"), header.get("alg")
        if not isinstance(kid, str) or not isinstance(algorithm, str):
            raise TokenRefusedError("the token names no key and algorithm")
        if "crit" in header:
            raise TokenRefusedError("the token has critical extensions")
        if not keys:
            raise TokenRefusedError("there are no keys yet", is_unknown=True)
        key = keys.get((kid, algorithm))
        if key is None:
            raise TokenRefusedError("no key of this id and algorithm is known", is_unknown=True)
        claims = json.loads(jwt.PyJWS().decode(text, key, algorithms=[algorithm]))
    except (jwt.PyJWTError, ValueError, RecursionError, TypeError):
        raise TokenRefusedError("the token is malformed, or its signature is wrong") from None
    if not isinstance(claims, dict):
        raise TokenRefusedError("the token has no claims")
    return cast("dict[str, Any]", claims)


def _checked_claims(claims: dict[str, Any], rules: TokenRules, now_ms: int) -> Token:
    now_s = now_ms / 1000
    expires, issued = _time(claims, "exp"), _time(claims, "iat")
    if now_s >= expires + rules.skew_s:
        raise TokenRefusedError("the token has expired")
    if issued > now_s + rules.skew_s or issued > expires:
        raise TokenRefusedError("the token was issued in the future")
    if "nbf" in claims and _time(claims, "nbf") > now_s + rules.skew_s:
        raise TokenRefusedError("the token is not valid yet")
    if not rules.issuer or claims.get("iss") != rules.issuer:
        raise TokenRefusedError("the token is of another issuer")
    named = claims.get("aud")
    audiences = cast("list[Any]", named) if isinstance(named, list) else [named]
    if not any(isinstance(each, str) and each in rules.audiences for each in audiences):
        raise TokenRefusedError("the token is for another audience")
    subject = claims.get(rules.subject_claim)
    if not isinstance(subject, str) or not subject.strip() or len(subject) > SUBJECT_MAX:
        raise TokenRefusedError(f"the token has no {rules.subject_claim}")
    scope = claims.get(rules.scope_claim, "")
    scopes = cast("list[Any]", scope) if isinstance(scope, list) else [scope]
    if not all(isinstance(each, str) for each in scopes):
        raise TokenRefusedError(f"the token's {rules.scope_claim} is malformed")
    return Token(subject, int(expires * 1000))


def _time(claims: dict[str, Any], name: str) -> float:
    value = claims.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise TokenRefusedError(f"the token has no {name}")
    if not 0 <= value < 1 << 53:
        raise TokenRefusedError(f"the token's {name} is out of range")
    return float(value)


def _token_of(message: bytes) -> tuple[str, str]:
    """(authorization id, or empty, and token) of a client's first message. Raises TokenRefusedError."""
    found = _FIRST.fullmatch(message)
    if found is None:
        raise TokenRefusedError("the first message is malformed")
    pairs = [pair.partition(b"=") for pair in found["pairs"].split(b"\x01")[:-1]]
    values = [value for name, _, value in pairs if name == b"auth"]
    try:
        bearer = _BEARER.fullmatch(values[0].decode("ascii")) if len(values) == 1 else None
        authzid = (found["authzid"] or b"").decode()
    except UnicodeDecodeError:
        bearer, authzid = None, ""
    if bearer is None:
        raise TokenRefusedError("the first message has no bearer token")
    return authzid, bearer[1]


class OAuthExchange:
    """The exchange with one client; `sasl.Exchange`.

    - `keys`: returns the keys that are known now.
    - `now_ms`: returns the wall clock.
    - `unknown`: called for a token whose key is not known.
    """

    __slots__ = ("_keys", "_now_ms", "_rules", "_unknown", "_why", "ends_at_ms", "user")

    claimed = ""

    def __init__(
        self, rules: TokenRules, keys: Callable[[], KeySet], now_ms: Callable[[], int], unknown: Callable[[], None]
    ) -> None:
        self._rules = rules
        self._keys = keys
        self._now_ms = now_ms
        self._unknown = unknown
        self._why = ""
        self.user: str | None = None
        self.ends_at_ms: int | None = None

    def respond(self, message: bytes) -> bytes:
        """The answer to the client's next message: nothing if its token is accepted, otherwise the challenge, after
        which it is refused whatever it sends. Raises AuthenticationError."""
        if self._why:
            raise AuthenticationError(self._why)
        try:
            authzid, text = _token_of(message)
            token = check_token(text, self._keys(), self._rules, self._now_ms())
            if authzid not in ("", token.subject):
                raise TokenRefusedError("the client asks to act as another user")
        except TokenRefusedError as refused:
            if refused.is_unknown:
                self._unknown()
            self._why = str(refused)
            return INVALID
        self.user, self.ends_at_ms = token.subject, token.expires_ms
        return b""
