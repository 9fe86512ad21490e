"""Authenticates a connection by SASL: SCRAM-SHA-256, SCRAM-SHA-512, PLAIN or OAUTHBEARER.

Sources: KIP-43, KIP-152, KIP-255, KIP-368; Kafka's SaslClientAuthenticator.java, PlainSaslClient (RFC 4616); RFC 7628.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ottla.client.errors import BrokerError, ClientError
from ottla.client.oauth import Tokens, WrongTokensError, tokens_of
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from ottla.protocol.scram import DIGESTS, ScramClient, ScramError

PLAIN = "PLAIN"
OAUTHBEARER = "OAUTHBEARER"
MECHANISMS = (*DIGESTS, PLAIN, OAUTHBEARER)
_LOGIN_MODULE = re.compile(
    r"\s*[\w.]+(?P<kind>Scram|Plain|OAuthBearer)LoginModule\s+required\b(?P<options>.*);\s*", re.DOTALL
)
_OPTION = re.compile(r'(?P<name>\w+)\s*=\s*(?:"(?P<quoted>(?:\\.|[^"\\])*)"|(?P<bare>[^\s";]+))')


class WrongLoginError(ValueError):
    """The client properties name no login that can be used; the text is one sentence."""


@dataclass(frozen=True, slots=True)
class Login:
    """A user, the password, and the mechanism; for OAUTHBEARER what gets tokens. Hashable, so that connections can be
    kept by it."""

    mechanism: str
    user: str = ""
    password: str = field(default="", repr=False)
    tokens: Tokens | None = field(default=None, repr=False)


def login_of(given: Mapping[str, str]) -> Login | None:
    """The login in client properties, None if `security.protocol` has no SASL. Takes librdkafka's names and Java's
    (`sasl.jaas.config`). Raises WrongLoginError."""
    if not given.get("security.protocol", "PLAINTEXT").upper().startswith("SASL"):
        return None
    mechanism = given.get("sasl.mechanism") or given.get("sasl.mechanisms") or ""
    if mechanism.upper() not in MECHANISMS:
        raise WrongLoginError(
            f"sasl.mechanism must be one of {', '.join(MECHANISMS)}, not {mechanism!r}."
            if mechanism
            else f"sasl.mechanism is missing: {', '.join(MECHANISMS)}."
        )
    options = _jaas_options(given)
    if mechanism.upper() == OAUTHBEARER:
        try:
            return Login(OAUTHBEARER, tokens=tokens_of(given, options or {}))
        except WrongTokensError as wrong:
            raise WrongLoginError(str(wrong)) from None
    user, password = given.get("sasl.username"), given.get("sasl.password")
    if options is not None:
        user, password = options.get("username"), options.get("password")
    if not user or password is None:
        raise WrongLoginError("A login needs sasl.username and sasl.password.")
    return Login(mechanism.upper(), user, password)


def _jaas_options(given: Mapping[str, str]) -> dict[str, str] | None:
    """The options of `sasl.jaas.config`, None without it. Raises WrongLoginError."""
    if "sasl.jaas.config" not in given:
        return None
    found = _LOGIN_MODULE.fullmatch(given["sasl.jaas.config"])
    if found is None:
        raise WrongLoginError(
            "sasl.jaas.config must name Kafka's ScramLoginModule or PlainLoginModule, with username and password, or "
            "OAuthBearerLoginModule."
        )
    return {each["name"]: _unquoted(each) for each in _OPTION.finditer(found["options"])}


def _unquoted(option: re.Match[str]) -> str:
    if option["quoted"] is None:
        return option["bare"]
    return re.sub(r"\\(.)", r"\1", option["quoted"])


class Asks(Protocol):
    """A connection that sends a request at a version, and returns the answer."""

    address: str

    def ask(self, message: SaslHandshakeRequest | SaslAuthenticateRequest, version: int) -> object: ...


def authenticate(connection: Asks, login: Login) -> float | None:
    """Authenticate; returns the session's lifetime in seconds, None if it has no end. Raises ClientError."""
    handshake = connection.ask(SaslHandshakeRequest(login.mechanism), 1)
    assert isinstance(handshake, SaslHandshakeResponse)
    if handshake.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        raise ClientError(
            f"{connection.address} does not take {login.mechanism}: it takes {', '.join(handshake.mechanisms)}."
        )
    if handshake.error_code:
        raise BrokerError(handshake.error_code, connection.address)
    if login.mechanism == OAUTHBEARER:
        return _by_token(connection, login)
    if login.mechanism == PLAIN:
        token = b"\0%b\0%b" % (login.user.encode(), login.password.encode())
        return _token(connection, login, token).session_lifetime_ms / 1000 or None
    client = ScramClient(login.mechanism, login.user, login.password, secrets.token_hex(24))
    try:
        final = client.final(_token(connection, login, client.first()).auth_bytes)
        last = _token(connection, login, final)
        client.verify(last.auth_bytes)
    except ScramError as failed:
        raise ClientError(f"{connection.address} does not prove that it knows the password: {failed}.") from None
    return last.session_lifetime_ms / 1000 or None


def _by_token(connection: Asks, login: Login) -> float | None:
    """Authenticate by a token. A broker that refuses it says so in a challenge, and fails the next message."""
    assert login.tokens is not None
    answer = _token(connection, login, b"n,,\x01auth=Bearer %b\x01\x01" % login.tokens().encode())
    if answer.auth_bytes:
        _token(connection, login, b"\x01")
        raise ClientError(f"{connection.address} does not accept the token.")
    return answer.session_lifetime_ms / 1000 or None


def _token(connection: Asks, login: Login, token: bytes) -> SaslAuthenticateResponse:
    answer = connection.ask(SaslAuthenticateRequest(token), 1)
    assert isinstance(answer, SaslAuthenticateResponse)
    if answer.error_code:
        who = f"{login.user} at {connection.address}" if login.user else connection.address
        raise BrokerError(answer.error_code, who, answer.error_message)
    return SaslAuthenticateResponse(auth_bytes=bytes(answer.auth_bytes), session_lifetime_ms=answer.session_lifetime_ms)
