"""What changes when the cluster gives a node up, and how many copies coordinators' topics need so that one may go."""

from pathlib import Path

from ottla.broker.cluster.peers import FETCH_LINE
from ottla.broker.config.values import BrokerSettings
from ottla.broker.topics.new_topic import new_internal, replication_factors
from ottla.machine import Millis, Unanswered
from ottla.metadata.topic_names import INTERNAL_TOPICS
from ottla.protocol.framing import RequestHeader, encode_response
from ottla.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from tests.harness.node_stage import NodeStage

OTHER = 7


class Questioner:
    """Whoever has asked another node."""

    def __init__(self) -> None:
        self.answers: list[object] = []

    def answered(self, now: Millis, answer: object) -> None:
        self.answers.append(answer)


def test_nobody_waits_for_a_node_that_was_given_up(tmp_path: Path) -> None:
    stage = NodeStage(tmp_path)
    who, other, follower = Questioner(), Questioner(), Questioner()
    stage.node.peers.ask(stage.now, OTHER, ListGroupsRequest(), who)
    stage.node.peers.ask(stage.now, OTHER + 1, ListGroupsRequest(), other)
    stage.node.peers.ask(stage.now, OTHER, ListGroupsRequest(), follower, line=FETCH_LINE)
    stage.node.peers.given_up(OTHER)
    assert not who.answers, "a completion comes after the call"
    stage.settle()
    assert who.answers == [Unanswered("node 7 was given up")]
    assert not other.answers
    assert not follower.answers
    token = stage.asks[0].token
    header = RequestHeader(ListGroupsRequest.API_KEY, ListGroupsRequest.MAX_VERSION, token)
    stage.node.answered(stage.now, token, bytes(encode_response(header, ListGroupsResponse()))[4:])
    assert len(who.answers) == 1


def test_coordinators_topics_say_how_many_replicas_they_need() -> None:
    """Groups' is as Kafka's, which leaves it to the broker."""
    settings = BrokerSettings.load({name: str(value) for name, value in replication_factors(3).items()}, {})
    needed = [new_internal(settings, name).overrides.get("min.insync.replicas") for name in INTERNAL_TOPICS]
    assert sorted(needed, key=str) == ["2", "2", None]
    assert [replication_factors(nodes)["transaction.state.log.min.isr"] for nodes in (1, 2, 3, 5)] == [1, 1, 2, 2]
