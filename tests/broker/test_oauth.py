"""OAUTHBEARER on the node's side: which tokens are accepted, and that everything else fails closed."""

import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from ottla.broker.channel import Channel
from ottla.broker.client_identity import Address, Identity
from ottla.broker.security.jwks import KEYS_MAX, KeysRefusedError, key_set_of
from ottla.broker.security.oauth import INVALID, OAuthExchange, TokenRefusedError, TokenRules, check_token
from ottla.broker.security.scram import AuthenticationError
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest
from tests.harness.node_stage import Client, NodeStage
from tests.harness.tokens import AUDIENCE, ISSUER, Issuer, base64url, public_jwk

NOW_S = 1_800_000_000
RULES = TokenRules(ISSUER, (AUDIENCE, "other"), "sub", "scope", 30)


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return Issuer()


def subject(token: str, issuer: Issuer, rules: TokenRules = RULES, now_s: float = NOW_S) -> str:
    return check_token(token, key_set_of(issuer.key_set), rules, int(now_s * 1000)).subject


@pytest.mark.parametrize(
    "claims",
    [
        {},
        {"aud": ["unheard", "other"]},
        {"exp": NOW_S - 29, "iat": NOW_S - 100},
        {"exp": NOW_S + 0.5},
        {"iat": NOW_S + 29},
        {"nbf": NOW_S + 29},
        {"scope": "read write"},
        {"scope": ["read", "write"]},
    ],
)
def test_a_token_with_right_claims_is_accepted(issuer: Issuer, claims: dict[str, Any]) -> None:
    assert subject(issuer.token(NOW_S, **claims), issuer) == "ada"


@pytest.mark.parametrize(
    ("claims", "says"),
    [
        ({"exp": NOW_S - 30, "iat": NOW_S - 100}, "expired"),
        ({"exp": None}, "no exp"),
        ({"exp": "never"}, "no exp"),
        ({"exp": True}, "no exp"),
        ({"exp": float("inf")}, "no exp"),
        ({"exp": float("nan")}, "no exp"),
        ({"exp": 1 << 60}, "out of range"),
        ({"iat": None}, "no iat"),
        ({"iat": NOW_S + 31}, "in the future"),
        ({"iat": NOW_S + 20, "exp": NOW_S + 10}, "in the future"),
        ({"nbf": NOW_S + 31}, "not valid yet"),
        ({"iss": None}, "another issuer"),
        ({"iss": ISSUER + "/"}, "another issuer"),
        ({"iss": [ISSUER]}, "another issuer"),
        ({"aud": None}, "another audience"),
        ({"aud": "ottl"}, "another audience"),
        ({"aud": []}, "another audience"),
        ({"aud": {AUDIENCE: 1}}, "another audience"),
        ({"sub": None}, "no sub"),
        ({"sub": " "}, "no sub"),
        ({"sub": 7}, "no sub"),
        ({"sub": "x" * 1001}, "no sub"),
        ({"scope": 7}, "scope is malformed"),
    ],
)
def test_a_token_with_wrong_claims_is_refused(issuer: Issuer, claims: dict[str, Any], says: str) -> None:
    # PyJWT itself refuses to make some of these.
    now = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "iat": NOW_S, "exp": NOW_S + 300, **claims}
    body = json.dumps({name: value for name, value in now.items() if value is not None}).encode()
    token = jwt.PyJWS().encode(body, issuer.key, "ES256", {"kid": issuer.kid})
    with pytest.raises(TokenRefusedError, match=says):
        subject(token, issuer)


def test_another_claim_can_name_the_principal(issuer: Issuer) -> None:
    rules = RULES._replace(subject_claim="client_id")
    assert subject(issuer.token(NOW_S, client_id="billing"), issuer, rules) == "billing"
    with pytest.raises(TokenRefusedError, match="no client_id"):
        subject(issuer.token(NOW_S), issuer, rules)
    with pytest.raises(TokenRefusedError, match="another issuer"):
        subject(issuer.token(NOW_S, iss=None), issuer, RULES._replace(issuer=""))


def forged(header: dict[str, Any], issuer: Issuer, secret: bytes = b"") -> str:
    """A token whose header was chosen by an attacker, signed by HMAC with what is public."""
    _, claims, _ = issuer.token(NOW_S).split(".")
    signed = f"{base64url(json.dumps(header).encode())}.{claims}"
    return f"{signed}.{base64url(hmac.digest(secret, signed.encode(), hashlib.sha256)) if secret else ''}"


def test_a_token_can_not_choose_how_it_is_checked(issuer: Issuer) -> None:
    public = issuer.key.public_key()
    pem = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    kid = issuer.kid
    stranger = Issuer(kid)
    for token in (
        forged({"alg": "none", "kid": kid}, issuer),
        forged({"alg": "NONE", "kid": kid}, issuer),
        forged({"alg": "HS256", "kid": kid}, issuer, pem),
        forged({"alg": "HS256", "kid": kid}, issuer, json.dumps(issuer.jwk).encode()),
        forged({"alg": "ES256", "kid": kid}, issuer, pem),
        forged({"alg": ["ES256"], "kid": kid}, issuer, pem),
        forged({"alg": "RS256", "kid": kid}, issuer, pem),
        stranger.token(NOW_S),
        stranger.token(NOW_S, header={"jwk": stranger.jwk, "jku": "https://evil.example/keys", "x5u": "file:///x"}),
        issuer.token(NOW_S, header={"kid": "unknown"}),
        issuer.token(NOW_S, header={"crit": ["exp"], "exp": 1}),
        issuer.token(NOW_S)[:-4] + "AAAA",
        issuer.token(NOW_S).replace(".", "..", 1),
        "a.b.c",
        ".",
        "",
        "x" * 70_000,
        base64url(b"[" * 30_000) + ".e30.AAAA",
        base64url(b'{"alg":"ES256","kid":7}') + ".e30.AAAA",
    ):
        with pytest.raises(TokenRefusedError):
            subject(token, issuer)
    with pytest.raises(TokenRefusedError) as refused:
        check_token(issuer.token(NOW_S), {}, RULES, NOW_S * 1000)
    assert refused.value.is_unknown


def test_rsa_keys_check_only_rsa_signatures() -> None:
    key = rsa.generate_private_key(65537, 2048)
    keys = key_set_of(json.dumps({"keys": [{**public_jwk(key), "kid": "r"}]}).encode())
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "iat": NOW_S, "exp": NOW_S + 60}
    for algorithm in ("RS256", "PS512"):
        token = jwt.encode(claims, key, algorithm, {"kid": "r"})
        assert check_token(token, keys, RULES, NOW_S * 1000).subject == "ada"
    bound = key_set_of(json.dumps({"keys": [{**public_jwk(key), "kid": "r", "alg": "RS256"}]}).encode())
    with pytest.raises(TokenRefusedError, match="no key of this id and algorithm"):
        check_token(jwt.encode(claims, key, "PS256", {"kid": "r"}), bound, RULES, NOW_S * 1000)


def test_keys_that_can_not_check_a_signature_are_skipped_and_an_empty_set_is_refused(issuer: Issuer) -> None:
    small = rsa.generate_private_key(65537, 1024)
    other_curve = ec.generate_private_key(ec.SECP256K1())
    unusable: list[Any] = [
        {"kty": "oct", "k": "c2VjcmV0", "kid": "s", "alg": "HS256"},
        {**public_jwk(small), "kid": "small"},
        {**public_jwk(other_curve), "kid": "curve"},
        {**issuer.jwk, "use": "enc"},
        {**issuer.jwk, "key_ops": ["sign"]},
        {**issuer.jwk, "alg": "HS256"},
        {**issuer.jwk, "kid": ""},
        {**issuer.jwk, "kid": 7},
        {**issuer.jwk, "x": "!"},
        {**issuer.jwk, "d": "AAAA"},
        {"kty": "EC", "kid": "half", "crv": "P-256"},
        "text",
    ]
    assert list(key_set_of(json.dumps({"keys": [*unusable, issuer.jwk]}).encode())) == [("first", "ES256")]
    for text in (
        json.dumps({"keys": unusable}).encode(),
        json.dumps({"keys": [issuer.jwk] * (KEYS_MAX + 1)}).encode(),
        b'{"keys": []}',
        b"[]",
        b"{}",
        b"<html>",
        b"[" * 100_000,
        b" " * 300_000,
    ):
        with pytest.raises(KeysRefusedError):
            key_set_of(text)


def exchange(issuer: Issuer, unknown: list[str]) -> OAuthExchange:
    keys = key_set_of(issuer.key_set)
    return OAuthExchange(RULES, lambda: keys, lambda: NOW_S * 1000, lambda: unknown.append("asked"))


def first(token: str, authzid: str = "", more: str = "") -> bytes:
    return f"n,{f'a={authzid}' if authzid else ''},\x01auth=Bearer {token}\x01{more}\x01".encode()


def test_the_first_message_is_read_as_rfc_7628_has_it(issuer: Issuer) -> None:
    token = issuer.token(NOW_S)
    for message in (
        first(token),
        first(token, "ada"),
        first(token, more="traceparent=1\x01"),
        first(token).replace(b"Bearer", b"bearer"),
    ):
        made = exchange(issuer, [])
        assert (made.respond(message), made.user) == (b"", "ada")
        assert made.ends_at_ms == (NOW_S + 300) * 1000
    for message in (
        b"",
        b"\x01",
        first(token, "bob"),
        first(token).replace(b"n,", b"y,"),
        first(token)[:-1],
        first(token) + b"\x01",
        first(token, more=f"auth=Bearer {token}\x01"),
        first(token).replace(b"Bearer ", b"Basic "),
        first(token).replace(b"auth", b"hush"),
        first("\xff"),
    ):
        made = exchange(issuer, [])
        assert (made.respond(message), made.user) == (INVALID, None), message
        with pytest.raises(AuthenticationError):
            made.respond(first(token))  # too late
        assert made.user is None


def test_an_unknown_key_asks_for_the_keys_and_a_wrong_signature_does_not(issuer: Issuer) -> None:
    unknown: list[str] = []
    exchange(issuer, unknown).respond(first(issuer.token(NOW_S)[:-4] + "AAAA"))
    exchange(issuer, unknown).respond(first(issuer.token(NOW_S, aud="x")))
    assert unknown == []
    exchange(issuer, unknown).respond(first(Issuer("second").token(NOW_S)))
    assert unknown == ["asked"]


# ---- on a node -----------------------------------------------------------------------------------------------------


@pytest.fixture
def stage(tmp_path: Path, issuer: Issuer) -> NodeStage:
    stage = NodeStage(
        tmp_path / "node",
        sasl_enabled_mechanisms="OAUTHBEARER",
        sasl_oauthbearer_expected_issuer=ISSUER,
        sasl_oauthbearer_expected_audience=AUDIENCE,
        ottla_audit_events="logins",
    )
    stage.node.keys_changed("EXTERNAL", key_set_of(issuer.key_set))
    return stage


def connected(stage: NodeStage) -> int:
    number = stage.connect()
    stage.clients[number] = Client(Channel(Identity(Address(number, "10.0.0.7", 1, "EXTERNAL", "SASL_SSL"))))
    return number


def login(stage: NodeStage, connection: int, token: str) -> Any:
    """The last answer."""
    assert stage.ask(SaslHandshakeRequest("OAUTHBEARER"), connection=connection).error_code == 0
    answer = stage.ask(SaslAuthenticateRequest(first(token)), connection=connection)
    if answer.auth_bytes:
        assert (bytes(answer.auth_bytes), answer.error_code) == (INVALID, 0)
        asked = stage.send(SaslAuthenticateRequest(b"\x01"), connection=connection)
        stage.run(1_000)
        answer = asked.answer
    return answer


def test_a_session_lasts_as_long_as_its_token(stage: NodeStage, issuer: Issuer) -> None:
    now_s = stage.node.wall.at(stage.now) // 1000
    client = connected(stage)
    answer = login(stage, client, issuer.token(now_s, exp=now_s + 60))
    assert (answer.error_code, answer.session_lifetime_ms) == (0, 60_000)
    channel = stage.clients[client].channel
    assert str(channel.identity.principal) == "User:ada"
    stage.run(59_000)
    assert stage.ask(MetadataRequest([]), connection=client).brokers
    assert login(stage, client, issuer.token(now_s, exp=now_s + 120)).session_lifetime_ms == 61_000
    stage.run(62_000)
    assert not channel.authenticated
    late = login(stage, connected(stage), issuer.token(now_s - 100, exp=now_s + 111))
    assert late.session_lifetime_ms == 1_000, "within the skew; 0 would be a session without an end"


def test_another_principal_or_a_bad_token_ends_the_connection(stage: NodeStage, issuer: Issuer) -> None:
    now_s = stage.node.wall.at(stage.now) // 1000
    client = connected(stage)
    login(stage, client, issuer.token(now_s))
    stage.run(2_000)
    assert stage.ask(SaslHandshakeRequest("OAUTHBEARER"), connection=client).error_code == 0
    asked = stage.send(SaslAuthenticateRequest(first(issuer.token(now_s, sub="bob"))), connection=client)
    stage.run(1_000)
    assert asked.answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    refused = login(stage, connected(stage), Issuer("second").token(now_s))
    assert refused.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert "invalid credentials" in refused.error_message
    assert stage.fetched == ["EXTERNAL"]
    good, other, unknown = stage.audited
    assert (good["event"], good["principal"], good["mechanism"]) == ("login", "User:ada", "OAUTHBEARER")
    assert other["event"] == unknown["event"] == "login failed"
    assert unknown["why"] == "no key of this id and algorithm is known"


def test_max_reauth_bounds_the_session_too(tmp_path: Path, issuer: Issuer) -> None:
    stage = NodeStage(
        tmp_path / "node",
        connections_max_reauth_ms="5000",
        sasl_enabled_mechanisms="OAUTHBEARER",
        sasl_oauthbearer_expected_issuer=ISSUER,
        sasl_oauthbearer_expected_audience=AUDIENCE,
    )
    now_s = stage.node.wall.at(stage.now) // 1000
    client = connected(stage)
    assert login(stage, client, issuer.token(now_s)).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED, "no keys yet"
    stage.node.keys_changed("EXTERNAL", key_set_of(issuer.key_set))
    assert login(stage, connected(stage), issuer.token(now_s)).session_lifetime_ms == 5_000
