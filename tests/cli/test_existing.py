"""What is named and not there: an error that says so, and nothing is made by asking."""

from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, TopicPartition

from ottla.cli import connection
from ottla.cli.main import main
from ottla.testing import EmbeddedBroker

from .conftest import Run


@pytest.mark.parametrize(
    "command",
    [
        "groups reset-offsets g --topic {} --to-earliest",
        "groups reset-offsets g --topic {}:0 --to-latest --execute",
        "share-groups reset-offsets g --topic {} --to-earliest --execute",
        "share-groups redrive g --dead-letters {}",
        "records delete {} --before 0",
        "configs describe topic {}",
        "configs alter topic {} --set retention.ms=1000",
        "topics describe {}",
        "topics alter {} --set retention.ms=1000",
    ],
)
def test_a_mistyped_topic_is_told_and_not_made(ottla: Run, command: str) -> None:
    said = ottla(*command.format("mistyped").split(), code=1).err
    assert "mistyped" in said
    assert "mistyped" not in ottla("topics", "list").out


def test_every_missing_topic_is_named(ottla: Run, ottla_topic: str) -> None:
    said = ottla("topics", "describe", "one", ottla_topic, "two", code=1).err
    assert said == "ottla: There are no topics one, two. `ottla topics list` shows the existing ones.\n"


@pytest.mark.parametrize("command", ["describe broker 2", "alter broker 2 --set log.retention.ms=1"])
def test_a_broker_that_is_not_there(ottla: Run, command: str) -> None:
    said = ottla("configs", *command.split(), code=1).err
    assert said == "ottla: There is no broker 2: the cluster has broker 1.\n"
    assert "a number" in ottla("configs", *command.replace("2", "two", 1).split(), code=2).err


def test_a_group_that_is_not_there(ottla: Run) -> None:
    assert "There is no group nosuch" in ottla("configs", "describe", "group", "nosuch", code=1).err
    for verb in ("pause", "resume"):
        assert "There is no share group nosuch." in ottla("share-groups", verb, "nosuch", code=1).err
    assert "share.delivery.paused" not in ottla("configs", "describe", "group", "nosuch", code=1).out


@pytest.mark.parametrize(
    "command",
    ["topics describe", "topics delete", "groups describe", "share-groups pause", "records delete --before 1 --",
     "configs describe broker", "configs alter topic --set a=b --"],
)  # fmt: skip
def test_an_empty_name_is_none(ottla: Run, command: str) -> None:
    assert "cannot be empty" in ottla(*command.split(), "", code=2).err


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("topics create many -p 100000000", 2),
        ("topics create many -r 100000", 2),
        ("topics add-partitions {} --total 100000000000", 2),
        ("records delete {} --before 99999999999999999999999", 2),
    ],
)
def test_numbers_out_of_range(ottla: Run, ottla_topic: str, command: str, code: int) -> None:
    ottla(*command.format(ottla_topic).split(), code=code)


def test_names_are_completed(ottla: Run, ottla_topic: str) -> None:
    ottla("produce", ottla_topic, stdin="0\n")
    ottla("consume", ottla_topic, "--group", ottla_topic, "--from-beginning", "-n", "1")
    completions: list[Callable[[str], list[str]]] = [connection.complete_topics, connection.complete_groups]
    for complete in completions:
        assert complete(ottla_topic[:-1]) == [ottla_topic]
        assert complete("no-such") == []


def test_nothing_is_completed_where_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTTLA_BOOTSTRAP", "127.0.0.1:1")
    assert connection.complete_groups("") == connection.complete_topics("") == []


@pytest.mark.parametrize("command", ["topics delete {}", "records delete {} --before end"])
def test_what_the_cluster_keeps_for_itself_is_not_taken_by_mistake(ottla: Run, ottla_topic: str, command: str) -> None:
    ottla("produce", ottla_topic, stdin="0\n")
    ottla("consume", ottla_topic, "--group", ottla_topic, "--from-beginning", "-n", "1")
    said = ottla(*command.format("__consumer_offsets").split(), code=1).err
    assert "committed offsets of every consumer group" in said
    assert "--internal" in said
    assert ottla_topic in ottla("groups", "list").out
    assert "__share_group_state" in ottla(*command.format("__share_group_state").split(), code=1).err


def test_it_is_taken_when_that_is_meant() -> None:
    """With a broker of its own, for its groups are gone then."""
    with EmbeddedBroker() as broker:
        consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"})
        consumer.commit(offsets=[TopicPartition(broker.create_topic(), 0, 0)], asynchronous=False)
        consumer.close()
        assert main(["topics", "delete", "__consumer_offsets", "--internal", "-b", broker.bootstrap_servers]) == 0


def test_partitions_of_a_coordinators_topic_stay(ottla: Run) -> None:
    assert "given other partitions" in ottla("topics", "add-partitions", "__consumer_offsets", "-t", "9", code=1).err


def test_what_was_done_beside_a_failure_is_told(ottla: Run, ottla_topic: str) -> None:
    names = [f"{ottla_topic}-a", ottla_topic, f"{ottla_topic}-b"]
    said = ottla("topics", "create", *names, code=1).err
    assert said.startswith(f"ottla: {ottla_topic}: ")
    assert said.endswith(f" Created {names[0]}, {names[2]} all the same.\n")
    said = ottla("topics", "delete", f"{ottla_topic}-c", names[0], names[2], code=1).err
    assert said.endswith(f" Deleted {names[0]}, {names[2]} all the same.\n")
    said = ottla("topics", "create", ottla_topic, code=1).err
    assert "all the same" not in said
