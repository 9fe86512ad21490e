"""How nodes prove themselves to each other: attacks on the exchange, and what each would do if a check were missing."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.cluster.trust import Trust
from ottla.broker.security.node_proof import NodeExchange
from ottla.broker.security.scram import AuthenticationError
from ottla.protocol import node_proof
from ottla.protocol.node_proof import Hello, NodeClient, NotProvedError, encode_final

CLUSTER, OTHER_CLUSTER = "Q0xVU1RFUl9PTkVfX19fXw", "QU5PVEhFUl9DTFVTVEVSXw"
STORED = b"k" * 32
LISTENER = "PLAINTEXT"


def trust_of(node_id: int, cluster_id: str = CLUSTER, stored: bytes = STORED, secret: str = "") -> Trust:
    trust = Trust(node_id, Random(node_id), dict)
    trust.share(cluster_id, stored, secret, "old", LISTENER)
    return trust


def client(
    sender: int, receiver: int, trust: Trust | None = None, *, nonce: int = 1, binding: bytes = b""
) -> NodeClient:
    trust = trust or trust_of(sender)
    return NodeClient(trust.key, Hello(trust.cluster_id, sender, receiver, bytes([nonce]) * 32), binding)


def server(node_id: int, trust: Trust | None = None, *, nonce: int = 100, binding: bytes = b"") -> NodeExchange:
    return NodeExchange(trust or trust_of(node_id), LISTENER, bytes([nonce]) * 32, binding)


def lets_in(exchange: NodeExchange, first: bytes, final: bytes) -> bool:
    """Whether the node takes the other side for a node, after these two tokens."""
    try:
        exchange.respond(first)
        exchange.respond(final)
    except AuthenticationError:
        return False
    return exchange.user is not None


def completes(asking: NodeClient, asked: NodeExchange) -> bool:
    """Whether both sides are content."""
    try:
        assert asked.respond(asking.final(asked.respond(asking.first()))) == b""
    except (AuthenticationError, NotProvedError):
        return False
    return asked.user is not None


@pytest.mark.parametrize("binding", [b"", b"finished"])
def test_two_nodes_of_a_cluster_prove_themselves(binding: bytes) -> None:
    asked = server(3, binding=binding)
    assert completes(client(2, 3, binding=binding), asked)
    assert asked.user == "2"


# ---- attacks: each returns whether it succeeds ---------------------------------------------------------------------


def recorded() -> tuple[bytes, bytes, bytes]:
    """The first token, its answer and the last token of an exchange between nodes 2 and 3."""
    asking, asked = client(2, 3), server(3)
    answer = asked.respond(asking.first())
    return asking.first(), answer, asking.final(answer)


def replay_to_a_node() -> bool:
    first, _, final = recorded()
    return lets_in(server(3, nonce=101), first, final)


def replay_to_the_node_that_connects() -> bool:
    """A false node answers with what node 3 answered another time."""
    try:
        client(2, 3, nonce=2).final(recorded()[1])
    except NotProvedError:
        return False
    return True


def reflect() -> bool:
    """A stranger sends a node's own proof back to it."""
    exchange = server(3)
    answer = exchange.respond(client(2, 3).first())
    return lets_in_last(exchange, encode_final(node_proof._bytes(answer.partition(b"proof=")[2])))


def lets_in_last(exchange: NodeExchange, final: bytes) -> bool:
    try:
        exchange.respond(final)
    except AuthenticationError:
        return False
    return exchange.user is not None


def relay_to_another_node() -> bool:
    """Node 2 looks for node 3, and somebody leads the connection to node 4."""
    return completes(client(2, 3), server(4))


def come_from_another_cluster() -> bool:
    """A copy of a cluster has its key, until its metadata is made anew."""
    return completes(client(2, 3, trust_of(2, OTHER_CLUSTER)), server(3))


def relay_between_two_channels() -> bool:
    """Somebody in the middle has a TLS connection to each side, and carries the tokens over."""
    return completes(client(2, 3, binding=b"to the middle"), server(3, binding=b"from the middle"))


def come_without_the_key() -> bool:
    return completes(client(2, 3, trust_of(2, stored=b"x" * 32)), server(3))


def come_without_the_secret() -> bool:
    """The metadata store was read, but not what the operator has given to the nodes."""
    return completes(client(2, 3), server(3, trust_of(3, secret="hush")))


def pretend_to_be_the_node_itself() -> bool:
    return completes(client(3, 3), server(3))


def without(part: int) -> Callable[[pytest.MonkeyPatch], None]:
    """The proof leaves one of its parts out: the role, the first token, the nonce, the binding."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        whole = node_proof.proof_of

        def proof_of(key: bytes, *parts: bytes) -> bytes:
            return whole(key, *(b"" if at == part else each for at, each in enumerate(parts)))

        monkeypatch.setattr("ottla.protocol.node_proof.proof_of", proof_of)
        monkeypatch.setattr("ottla.broker.security.node_proof.proof_of", proof_of)

    return plant


def believing(**said: Any) -> Callable[[pytest.MonkeyPatch], None]:
    """The node does not look at something that the first token says."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        decode = Hello.decode
        monkeypatch.setattr(Hello, "decode", staticmethod(lambda token: decode(token)._replace(**said)))

    return plant


def comparing_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hmac.compare_digest", lambda *_: True)


ATTACKS: dict[Callable[[], bool], Callable[[pytest.MonkeyPatch], None]] = {
    replay_to_a_node: without(2),
    replay_to_the_node_that_connects: without(1),
    reflect: without(0),
    relay_to_another_node: believing(receiver=4),
    come_from_another_cluster: believing(cluster_id=CLUSTER),
    relay_between_two_channels: without(3),
    come_without_the_key: comparing_nothing,
    come_without_the_secret: comparing_nothing,
    pretend_to_be_the_node_itself: believing(sender=2),
}
"""And the fault that would let each succeed."""


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda each: each.__name__)
def test_an_attack_gets_nothing(attack: Callable[[], bool]) -> None:
    assert not attack()


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda each: each.__name__)
def test_an_attack_would_succeed_without_its_check(attack: Callable[[], bool], monkeypatch: pytest.MonkeyPatch) -> None:
    ATTACKS[attack](monkeypatch)
    assert attack()


def test_a_listener_for_clients_alone_lets_no_node_in() -> None:
    exchange = NodeExchange(trust_of(3), "CLIENTS", b"n" * 32, b"")
    with pytest.raises(AuthenticationError, match="does not use the listener CLIENTS"):
        exchange.respond(client(2, 3).first())


@given(st.lists(st.binary(max_size=40) | st.just(client(2, 3).first()), max_size=3))
def test_other_tokens_are_refused(tokens: list[bytes]) -> None:
    exchange = server(3)
    for token in tokens:
        try:
            exchange.respond(token)
        except AuthenticationError:
            break
    assert exchange.user is None


@given(st.binary(max_size=60))
def test_other_answers_prove_nothing(answer: bytes) -> None:
    with pytest.raises(NotProvedError):
        client(2, 3).final(answer)


def test_what_is_said_has_no_key_in_it() -> None:
    trust = trust_of(2, secret="hush")
    with pytest.raises(AuthenticationError) as refused:
        server(3, trust_of(3)).respond(client(2, 4, trust).first())
    for text in (*recorded(), str(refused.value).encode(), repr(trust).encode()):
        assert trust.key not in text
        assert b"hush" not in text
        assert STORED not in text
