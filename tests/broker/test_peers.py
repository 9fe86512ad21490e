"""Requests to other nodes: they leave once what was decided is committed, and are answered once."""

from typing import Any, ClassVar

import pytest

from ottla.broker.channel import NODE_CHANNEL
from ottla.broker.cluster.peers import DOUBT_MS, FETCH_LINE, MARKERS_LINE, STATE_LINE, TIMEOUT_MS
from ottla.broker.coordinators.shards import CoordinatorRequest, ShardHost
from ottla.broker.requests import Request
from ottla.machine import NOTHING, AppliedBatch, Call, Decision, Millis, ShardCall, ShardRecord, Ticket, Unanswered
from ottla.protocol.framing import RequestHeader, encode_request, encode_response
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from tests.harness.node_stage import NodeStage

OTHER = 7
TOPIC = "asks"


class Questioner:
    """Whoever has asked another node."""

    def __init__(self) -> None:
        self.answers: list[Any] = []

    def answered(self, now: Millis, answer: object) -> None:
        self.answers.append(answer)


class AskingShard:
    """Remembers every call in its log, and asks a node what the call says; `heard` is what came back."""

    made: ClassVar[list["AskingShard"]] = []

    def __init__(self) -> None:
        self.heard: list[tuple[int, object]] = []
        self.applied = 0
        self.made.append(self)

    @staticmethod
    def of(*_: Any, **__: Any) -> "AskingShard":
        return AskingShard()

    @staticmethod
    def topics_deleted(names: tuple[str, ...]) -> None:
        return None

    @staticmethod
    def refuse(call: Call, error: Any) -> object:
        return ListGroupsResponse(error_code=error)

    def decide(self, now: Millis, ticket: Ticket, call: Call) -> Decision:
        node_id, number = call.body  # type: ignore[misc]
        return Decision((ShardRecord(b"k", b"v"),), asks=(ShardCall(number, node_id, ListGroupsRequest()),))

    def answered(self, now: Millis, number: int, answer: object) -> Decision:
        self.heard.append((number, answer))
        return Decision((ShardRecord(b"answered", b"%d" % number),))

    def apply(self, now: Millis, batch: AppliedBatch) -> None:
        self.applied += len(batch.records)

    def expire(self, now: Millis) -> Decision:
        return NOTHING

    def loaded(self, now: Millis) -> Decision:
        return NOTHING

    def abandon(self, ticket: Ticket) -> None: ...

    def apply_marker(self, producer_id: int, producer_epoch: int, committed: bool) -> None: ...

    def deadline(self) -> Millis | None:
        return None

    def check(self) -> None: ...


@pytest.fixture
def stage(tmp_path: Any) -> NodeStage:
    return NodeStage(tmp_path)


def answer_to(token: int, message: Any) -> bytes:
    """The frame of this answer to a ListGroups, without its length."""
    header = RequestHeader(ListGroupsRequest.API_KEY, ListGroupsRequest.MAX_VERSION, token)
    return bytes(encode_response(header, message))[4:]


def test_an_answer_finds_whoever_asked(stage: NodeStage) -> None:
    who = Questioner()
    stage.node.peers.ask(stage.now, OTHER, ListGroupsRequest(), who)
    stage.settle()
    (ask,) = stage.asks
    assert ask.node_id == OTHER
    header = RequestHeader(ListGroupsRequest.API_KEY, ListGroupsRequest.MAX_VERSION, ask.token, "ottla-node")
    assert ask.frame == bytes(encode_request(header, ListGroupsRequest()))
    stage.node.answered(stage.now, ask.token, answer_to(ask.token, ListGroupsResponse(error_code=15)))
    assert [answer.error_code for answer in who.answers] == [15]
    stage.node.answered(stage.now, ask.token, answer_to(ask.token, ListGroupsResponse()))
    assert len(who.answers) == 1
    assert len(stage.node.peers) == 0
    stage.node.peers.check()


@pytest.mark.parametrize("frame", [b"", b"\0\0\0", b"\0\0\0\x63\0" + 20 * b"\xff", answer_to(0, ListGroupsResponse())])
def test_an_answer_that_is_none_is_told_as_such(stage: NodeStage, frame: bytes) -> None:
    who = Questioner()
    stage.node.peers.ask(stage.now, OTHER, ListGroupsRequest(), who)
    stage.settle()
    stage.node.answered(stage.now, stage.asks[0].token, frame)
    (answer,) = who.answers
    assert isinstance(answer, Unanswered)
    assert answer.why.startswith("node 7 ")


def test_nobody_waits_longer_than_the_deadline(stage: NodeStage) -> None:
    who = Questioner()
    stage.node.peers.ask(stage.now, OTHER, ListGroupsRequest(), who)
    stage.run(TIMEOUT_MS - 1)
    assert not who.answers
    stage.run(1)
    assert who.answers == [Unanswered("node 7 did not answer in time")]
    stage.node.answered(stage.now, stage.asks[0].token, answer_to(stage.asks[0].token, ListGroupsResponse()))
    assert len(who.answers) == 1


def test_a_node_whose_connection_broke_is_doubted_for_a_while(stage: NodeStage) -> None:
    """Once, until it has answered again: a connection that stays broken says nothing of who else reaches the node."""
    peers = stage.node.peers

    def ask_in_vain() -> None:
        peers.ask(stage.now, OTHER, ListGroupsRequest(), Questioner())
        stage.settle()
        stage.node.answered(stage.now, stage.asks[-1].token, Unanswered("it is gone"))

    assert not peers.doubts(stage.now, OTHER)
    ask_in_vain()
    began = stage.now
    assert peers.doubts(began + DOUBT_MS - 1, OTHER)
    stage.run(DOUBT_MS)
    ask_in_vain()
    assert not peers.doubts(stage.now, OTHER)
    peers.ask(stage.now, OTHER, ListGroupsRequest(), Questioner())
    stage.settle()
    token = stage.asks[-1].token
    stage.node.answered(stage.now, token, answer_to(token, ListGroupsResponse()))
    ask_in_vain()
    assert peers.doubts(stage.now, OTHER)


def test_the_node_answers_itself_without_the_network(stage: NodeStage) -> None:
    """Also what it has to park: the coordinators' topic is made first."""
    who = Questioner()
    stage.node.peers.ask(stage.now, stage.node.node_id, FindCoordinatorRequest(coordinator_keys=["g"]), who)
    stage.node.peers.ask(stage.now, stage.node.node_id, ListGroupsRequest(), who)
    assert not who.answers
    stage.run()
    assert not stage.asks
    assert [type(answer) for answer in who.answers] == [ListGroupsResponse, FindCoordinatorResponse]


def shards_of(stage: NodeStage) -> ShardHost:
    AskingShard.made.clear()
    node = stage.node
    stage.create(TOPIC, 1, {})
    return ShardHost(
        node.environment,
        node.metadata,
        node.leadership,
        node.parking,
        node.peers,
        TOPIC,
        AskingShard,
        "offsets.commit.timeout.ms",
    )


def ask_through(stage: NodeStage, host: ShardHost, node_id: int, number: int) -> None:
    call = Call(-1, 0, "", "", (node_id, number))
    request = Request(NODE_CHANNEL, ListGroupsRequest.API_KEY, 5, 0, None, stage.now, None)
    host.submit(stage.now, request, CoordinatorRequest([(0, call)]))


def test_a_shard_asks_once_its_decision_is_committed(tmp_path: Any) -> None:
    stage = NodeStage(tmp_path, ottla_durability="fsync")
    stage.hold_syncs = True
    host = shards_of(stage)
    ask_through(stage, host, OTHER, 3)
    stage.settle()
    assert not stage.asks
    stage.sync()
    stage.settle()
    (ask,) = stage.asks
    stage.hold_syncs = False
    stage.node.answered(stage.now, ask.token, answer_to(ask.token, ListGroupsResponse(error_code=15)))
    stage.run()
    (shard,) = AskingShard.made
    assert [(number, answer.error_code) for number, answer in shard.heard] == [(3, 15)]  # type: ignore[attr-defined]
    assert shard.applied == 2


def test_a_marker_that_waits_at_another_node_delays_no_other_request(stage: NodeStage) -> None:
    """A node answers the requests of a connection in order, and a marker waits for its commit up to 30 s."""
    host = shards_of(stage)
    ask_through(stage, host, OTHER, 3)
    stage.node.peers.ask(stage.now, OTHER, ListGroupsRequest(), Questioner())
    stage.settle()
    of_shard, other = sorted(stage.asks, key=lambda ask: -ask.line)
    assert (of_shard.line, other.line) == (MARKERS_LINE, 0)
    assert MARKERS_LINE not in (0, FETCH_LINE, STATE_LINE)


def test_a_shard_whose_decision_is_lost_asks_nobody(tmp_path: Any) -> None:
    stage = NodeStage(tmp_path, ottla_durability="fsync")
    stage.hold_syncs = True
    host = shards_of(stage)
    ask_through(stage, host, OTHER, 3)
    stage.settle()
    stage.sync("no space left")
    stage.hold_syncs = False
    stage.run(60_000)
    assert not stage.asks


def test_a_shard_that_was_thrown_away_hears_nothing(stage: NodeStage) -> None:
    host = shards_of(stage)
    ask_through(stage, host, OTHER, 3)
    stage.settle()
    partition = stage.node.replicas.get(TOPIC, 0)
    assert partition is not None
    host.taken_back(stage.now, partition)
    stage.node.answered(stage.now, stage.asks[0].token, Unanswered("it is gone"))
    stage.run()
    assert [shard.heard for shard in AskingShard.made] == [[], []]
