"""SCRAM exchanges: both sides against each other, against another implementation, and against the RFC's example."""

import re
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scramp import ScramClient as OtherClient

from ottla.broker.security.scram import AuthenticationError, ScramExchange
from ottla.metadata.credentials import ScramCredential, decode
from ottla.protocol.scram import DIGESTS, ScramClient, ScramError, keys_of, salted

MECHANISMS = list(DIGESTS)
SECRET = b"s" * 32
NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=10)


def stored(mechanism: str, password: str, salt: bytes = b"salt" * 4, iterations: int = 4096) -> ScramCredential:
    return ScramCredential(
        salt, *keys_of(mechanism, salted(mechanism, password.encode(), salt, iterations)), iterations
    )


def server(mechanism: str, users: dict[str, ScramCredential], nonce: str = "server-nonce") -> ScramExchange:
    return ScramExchange(mechanism, users.get, nonce, SECRET)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@given(user=NAMES, password=NAMES)
@example(user="a,b=c=2C", password="pässwörd")
def test_a_client_that_knows_the_password_is_let_in(mechanism: str, user: str, password: str) -> None:
    exchange = server(mechanism, {user: stored(mechanism, password)})
    client = ScramClient(mechanism, user, password, "client-nonce")
    final = client.final(exchange.respond(client.first()))
    assert exchange.user is None
    client.verify(exchange.respond(final))
    assert exchange.user == user


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_another_implementation_agrees(mechanism: str) -> None:
    exchange = server(mechanism, {"ada": stored(mechanism, "lovelace", iterations=8192)})
    client = OtherClient([mechanism], "ada", "lovelace")
    client.set_server_first(exchange.respond(client.get_client_first().encode()).decode())
    client.set_server_final(exchange.respond(client.get_client_final().encode()).decode())
    assert exchange.user == "ada"


def test_the_example_of_rfc_7677_comes_out() -> None:
    import base64

    user = {"user": stored("SCRAM-SHA-256", "pencil", base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="))}
    exchange = server("SCRAM-SHA-256", user, nonce="%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    first = exchange.respond(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert first == b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    last = exchange.respond(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert last == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


Change = Callable[[bytes], bytes]


def replaced(pattern: bytes, by: bytes) -> Change:
    return lambda message: re.sub(pattern, by, message, count=1)


FIRST_CHANGES: list[Change] = [
    replaced(b"^n,,", b"p=tls-unique,,"),  # channel binding, which is not offered
    replaced(b"^n,,", b"n,a=root,"),  # to act as another user (CVE-2017-12610)
    replaced(b"^n,,", b""),
    replaced(b"n=ada", b"n="),
    replaced(b"n=ada", b"n=a=da"),
    replaced(b"n=ada", b"n=\xff"),
    replaced(b"r=.*", b"r="),
    replaced(b"r=.*", b"r=a\x7fb"),
    replaced(b"$", b",tokenauth=true"),
    lambda _: b"",
]
FINAL_CHANGES: list[Change] = [
    replaced(b"server-nonce", b"other"),  # another nonce (CVE-2024-56128)
    replaced(b"server-nonce", b""),
    replaced(b"c=biws", b"c=eSws"),
    replaced(b"c=biws", b"c=!"),
    replaced(b"p=.", b"p=/"),
    replaced(b"p=.*", b"p=AAAA"),
    replaced(b",p=.*", b""),
    replaced(b",p=", b",m=ext,p="),
    lambda _: b"",
]


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("at", range(len(FIRST_CHANGES)))
def test_a_first_message_that_is_wrong_ends_the_exchange(mechanism: str, at: int) -> None:
    exchange = server(mechanism, {"ada": stored(mechanism, "p")})
    with pytest.raises(AuthenticationError):
        exchange.respond(FIRST_CHANGES[at](ScramClient(mechanism, "ada", "p", "client-nonce").first()))


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("at", range(len(FINAL_CHANGES)))
def test_a_last_message_that_is_wrong_ends_the_exchange(mechanism: str, at: int) -> None:
    exchange = server(mechanism, {"ada": stored(mechanism, "p")})
    client = ScramClient(mechanism, "ada", "p", "client-nonce")
    final = client.final(exchange.respond(client.first()))
    with pytest.raises(AuthenticationError):
        exchange.respond(FINAL_CHANGES[at](final))
    assert exchange.user is None


def test_an_own_name_as_authorization_id_is_accepted() -> None:
    exchange = server("SCRAM-SHA-256", {"ada": stored("SCRAM-SHA-256", "p")})
    assert exchange.respond(b"n,a=ada,n=ada,r=abc").startswith(b"r=abcserver-nonce,")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_an_unknown_user_looks_like_a_wrong_password(mechanism: str) -> None:
    """The same messages, of the same length, the same salt each time, and the same error at the same place."""
    users = {"ada": stored(mechanism, "p")}
    said: list[str] = []
    answers: list[bytes] = []
    for name in ("ada", "bob", "bob"):
        exchange = server(mechanism, users)
        client = ScramClient(mechanism, name, "wrong", "client-nonce")
        answers.append(exchange.respond(client.first()))
        with pytest.raises(AuthenticationError) as failed:
            exchange.respond(client.final(answers[-1]))
        said.append(str(failed.value))
    assert len(set(said)) == 1
    assert len(set(map(len, answers))) == 1
    assert answers[1] == answers[2] != answers[0]


def test_what_was_heard_of_one_exchange_is_worth_nothing_in_the_next() -> None:
    mechanism, users = "SCRAM-SHA-512", {"ada": stored("SCRAM-SHA-512", "p")}
    client = ScramClient(mechanism, "ada", "p", "client-nonce")
    heard = server(mechanism, users, "one")
    final = client.final(heard.respond(client.first()))
    heard.respond(final)
    replayed = server(mechanism, users, "two")
    replayed.respond(client.first())
    with pytest.raises(AuthenticationError, match="another nonce"):
        replayed.respond(final)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"r=other,s=c2FsdA==,i=4096",
        b"r=client-nonce,s=c2FsdA==,i=4096",
        b"r=client-nonce+,s=c2FsdA==,i=1",
        b"r=client-nonce+,s=c2FsdA==,i=999999999",
        b"r=client-nonce+,s=c2FsdA=,i=4096",
    ],
)
def test_a_client_refuses_a_server_that_lies(message: bytes) -> None:
    with pytest.raises(ScramError):
        ScramClient("SCRAM-SHA-256", "ada", "p", "client-nonce").final(message)


def test_a_client_refuses_a_server_that_does_not_know_the_password() -> None:
    exchange = server("SCRAM-SHA-256", {"ada": stored("SCRAM-SHA-256", "p")})
    client = ScramClient("SCRAM-SHA-256", "ada", "p", "client-nonce")
    client.final(exchange.respond(client.first()))
    with pytest.raises(ScramError, match="has not proved"):
        client.verify(b"v=AAAA")


def test_a_credential_is_read_as_it_was_written_and_prints_no_key() -> None:
    credential = stored("SCRAM-SHA-512", "p")
    assert decode(credential.encode()) == credential
    assert "key" not in repr(credential)
