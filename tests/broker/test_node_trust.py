"""How a node takes connections of other nodes for such, also while some of them are of the version before this one."""

from dataclasses import replace
from pathlib import Path

import pytest

from ottla.broker.channel import Channel
from ottla.broker.client_identity import Address, Identity
from ottla.broker.cluster.introduction import Introduction
from ottla.broker.cluster.membership import Joining
from ottla.broker.effects import Close, Parked, Reply
from ottla.broker.requests import RequestRefusedError
from ottla.metadata.features import HIGHEST
from ottla.metadata.image import delta_since
from ottla.metadata.memory import MemoryStore
from ottla.metadata.nodes import NODE_PROOF, NodeRecord, NodeState
from ottla.metadata.store import ABSENT, Put
from ottla.protocol.framing import FrameSplitter, RequestHeader, decode_response, encode_request
from ottla.protocol.messages.envelope import EnvelopeRequest
from ottla.protocol.messages.list_groups import ListGroupsRequest
from ottla.protocol.node_proof import NotProvedError
from tests.harness.node_stage import NodeStage

LEASE_MS = 3_600_000
OTHER = 2


class Told:
    def answered(self, now: int, answer: object) -> None: ...


def node(directory: Path, store: MemoryStore, node_id: int, **settings: str) -> NodeStage:
    joining = Joining("127.0.0.1", 9000 + node_id, f"life-{node_id}", LEASE_MS, listener="NODES")
    return NodeStage(directory / str(node_id), store=store, joining=joining, node_id=str(node_id), **settings)


def other_node(directory: Path, stage: NodeStage, store: MemoryStore | None = None, **settings: str) -> NodeStage:
    """Another node of the cluster, which knows node 1."""
    stage.run()
    store = store or stage.store
    if store.get("nodes/1") is None:
        store.commit([Put("nodes/1", NEW.encode(), ABSENT)])
    return node(directory, store, OTHER, **settings)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def stage(tmp_path: Path, store: MemoryStore) -> NodeStage:
    return node(tmp_path, store, 1)


def channel_on(listener: str, security_protocol: str = "PLAINTEXT") -> Channel:
    return Channel(Identity(Address(77, "127.0.0.1", listener=listener, security_protocol=security_protocol)))


def introduce(introduction: Introduction | None, to: NodeStage, channel: Channel) -> None:
    """Carry the beginning of a connection over. Raises NotProvedError."""
    assert introduction is not None
    out = introduction.begin()
    while not introduction.is_over:
        sent, out = out, b""
        assert sent, "nobody says anything"
        for frame in FrameSplitter().feed(sent):
            answer = to.node.receive(to.now, channel, frame)
            if isinstance(answer, Parked):
                answer = late_answer(to, answer)
            out += introduction.receive(b"".join(bytes(part) for part in answer or [])[4:])  # type: ignore[arg-type]


def late_answer(stage: NodeStage, parked: Parked) -> list[bytes]:
    deadline = stage.node.deadline()
    assert deadline is not None
    stage.now = deadline
    stage.node.tick(stage.now)
    effects = stage.node.take_effects(stage.now)
    assert any(isinstance(effect, Close) for effect in effects)
    (reply,) = (effect for effect in effects if isinstance(effect, Reply) and effect.ticket == parked.ticket)
    return list(reply.parts)  # type: ignore[arg-type]


def tell(stage: NodeStage, record: NodeRecord, node_id: int = OTHER) -> None:
    key = f"nodes/{node_id}"
    known = stage.store.get(key)
    stage.store.commit([Put(key, record.encode(), ABSENT if known is None else known.version)])
    stage.node.changed(stage.now, delta_since(stage.store, stage.node.image))
    stage.settle()


OLD = NodeRecord("127.0.0.1", 9002, incarnation="old")
NEW = replace(OLD, features={**HIGHEST, NODE_PROOF: 1})


@pytest.mark.parametrize("security_protocol", ["PLAINTEXT", "SSL", "SASL_SSL", "SASL_PLAINTEXT"])
def test_a_node_proves_itself_once_on_a_connection(
    tmp_path: Path, stage: NodeStage, store: MemoryStore, security_protocol: str
) -> None:
    other, channel = other_node(tmp_path, stage), channel_on("NODES", security_protocol)
    introduce(other.node.introduction(1), stage, channel)
    assert stage.node.leadership.suspended, "a node that has lost its lease still knows the key"
    assert str(channel.identity.principal) == f"Node:{OTHER}"
    assert channel.identity.is_node
    assert stage.node.peers.trusts(channel.identity, "whatever it is called")
    # It has no lifetime: a node proves itself again on its next connection.
    assert not stage.node.sasl.of(channel).has_lifetime


def test_requests_right_behind_the_proof_are_those_of_a_node(
    tmp_path: Path, stage: NodeStage, store: MemoryStore
) -> None:
    introduction, channel = other_node(tmp_path, stage).node.introduction(1), channel_on("NODES", "SASL_SSL")
    assert introduction is not None
    for frame in FrameSplitter().feed(introduction.begin()):
        (answer,) = stage.node.receive(stage.now, channel, frame)  # type: ignore[misc]
        more = introduction.receive(bytes(answer)[4:])  # type: ignore[arg-type]
    assert introduction.is_proved
    assert not introduction.is_over
    request = encode_request(RequestHeader(ListGroupsRequest.API_KEY, 5, 9, "t"), ListGroupsRequest())
    proof, behind = FrameSplitter().feed(more + bytes(request))
    with pytest.raises(RequestRefusedError, match="during SASL handshake"):
        stage.node.receive(stage.now, channel, memoryview(bytearray(behind)))
    stage.node.receive(stage.now, channel, proof)
    assert stage.node.receive(stage.now, channel, behind)


@pytest.mark.parametrize(("listener", "why"), [("CLIENTS", "SASL_AUTHENTICATION_FAILED"), ("NODES", "cluster")])
def test_a_stranger_is_refused_after_a_while(tmp_path: Path, stage: NodeStage, listener: str, why: str) -> None:
    """Another secret, or a listener for clients alone."""
    secret = {} if listener == "CLIENTS" else {"ottla_cluster_secret": "a guess"}
    other, channel = other_node(tmp_path, stage, **secret), channel_on(listener)
    with pytest.raises(NotProvedError, match=why):
        introduce(other.node.introduction(1), stage, channel)
    assert not channel.identity.is_node


def test_nodes_meet_on_the_listener_that_the_other_one_names(
    tmp_path: Path, stage: NodeStage, store: MemoryStore
) -> None:
    """So a cluster moves to another listener node by node."""
    tell(stage, replace(NEW, endpoints={"NODES": ("elsewhere", 1), "NEXT": (NEW.host, NEW.port)}))
    other, channel = other_node(tmp_path, stage), channel_on("NEXT")
    introduce(other.node.introduction(1), stage, channel)
    assert channel.identity.is_node


def secret_of(store: MemoryStore) -> str:
    row = store.get("cluster/secret")
    assert row is not None
    return row.value.decode()


def test_the_secret_in_a_client_id_counts_as_long_as_a_node_needs_it(stage: NodeStage, store: MemoryStore) -> None:
    client_id, stranger = f"ottla-node:{secret_of(store)}", channel_on("NODES").identity
    trusts = stage.node.peers.trusts
    assert not trusts(stranger, client_id), "all nodes are new"
    tell(stage, OLD)
    assert trusts(stranger, client_id)
    assert not trusts(stranger, f"{client_id}x")
    assert not trusts(stranger, None)
    tell(stage, replace(OLD, state=NodeState.FENCED))
    assert not trusts(stranger, client_id), "the old one is down"
    tell(stage, replace(OLD, state=NodeState.STARTING))
    assert trusts(stranger, client_id)
    tell(stage, NEW)
    assert not trusts(stranger, client_id), "it was upgraded"
    envelope = encode_request(RequestHeader(EnvelopeRequest.API_KEY, 0, 9, client_id), EnvelopeRequest(b"", b"", b""))
    (answer,) = stage.node.receive(stage.now, channel_on("NODES"), memoryview(envelope)[4:])  # type: ignore[misc]
    refused = decode_response(EnvelopeRequest.API_KEY, 0, bytes(answer)[4:])[1]  # type: ignore[arg-type]
    assert refused.error_code == 31


def test_only_a_node_of_the_version_before_is_sent_the_secret(stage: NodeStage, store: MemoryStore) -> None:
    secret = secret_of(store).encode()

    def sent() -> bytes:
        stage.node.peers.ask(stage.now, OTHER, ListGroupsRequest(), Told())
        stage.settle()
        return stage.asks.pop().frame

    tell(stage, OLD)
    assert secret in sent()
    assert stage.node.introduction(OTHER) is None
    tell(stage, NEW)
    assert secret not in sent()
    assert stage.node.introduction(OTHER) is not None


def test_a_recorded_secret_of_the_version_before_makes_no_proof(tmp_path: Path, stage: NodeStage) -> None:
    """Whoever has listened before the upgrade knows it, and no more."""
    forged = MemoryStore()
    for key in ("cluster/id", "cluster/secret"):
        row = stage.store.get(key)
        assert row is not None
        forged.commit([Put(key, row.value, ABSENT)])
    with pytest.raises(NotProvedError):
        introduce(other_node(tmp_path, stage, forged).node.introduction(1), stage, channel_on("NODES"))


def test_a_node_that_is_alone_has_no_other_nodes(tmp_path: Path) -> None:
    stage = NodeStage(tmp_path, ottla_cluster_secret="secret")
    assert not stage.node.peers.trusts(channel_on("PLAINTEXT").identity, "ottla-node:secret")
    assert stage.node.introduction(OTHER) is None
