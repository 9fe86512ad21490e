"""`ottla share-groups` and `ottla consume --share` against a real node."""

import json
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer, ShareConsumer

from ottla.cli import consume_share
from ottla.cli.times import time_or_none
from ottla.client.dead_letters import Progress
from ottla.testing import EmbeddedBroker

from .conftest import Outcome, Run


@pytest.fixture
def queue(ottla: Run, ottla_topic: str) -> str:
    """A share group that has done two of five jobs; it has the topic's name."""
    ottla("produce", ottla_topic, stdin="0\n1\n2\n3\n4\n")
    done = ottla("consume", ottla_topic, "--share", ottla_topic, "--from-beginning", "-n", "2", "--timeout", "30")
    assert done.out == "0\n1\n"
    return ottla_topic


@pytest.fixture
def dead_letters(ottla: Run, queue: str) -> Iterator[str]:
    """The dead-letter topic of the queue."""
    name = f"dlq.{queue}"
    ottla("topics", "create", name, "--partitions", "1", "--config", "errors.deadletterqueue.group.enable=true")
    ottla("configs", "alter", "group", queue, "--set", f"errors.deadletterqueue.topic.name={name}")
    yield name
    ottla("topics", "delete", name)


def offsets(ottla: Run, group: str) -> tuple[int, int]:
    """(start offset, lag) in its only partition."""
    (row,) = ottla("share-groups", "describe", group, "--format", "json").json()
    return row["start_offset"], row["lag"]


def take(ottla: Run, queue: str, count: int, *more: str, stdin: str = "") -> list[str]:
    arguments = ("consume", queue, "--share", queue, "-n", str(count), "--timeout", "30", *more)
    return ottla(*arguments, stdin=stdin).out.split()


# ---- looking -------------------------------------------------------------------------------------------------------


def test_lag_is_shown_under_kafkas_names(ottla: Run, queue: str) -> None:
    shown = ottla("share-groups", "describe", queue)
    assert shown.out.splitlines()[0].split() == ["GROUP", "TOPIC", "PARTITION", "START-OFFSET", "LAG"]
    assert shown.rows() == [[queue, queue, "0", "2", "3"]]


def test_states_lists_and_members(ottla: Run, queue: str, ottla_broker: EmbeddedBroker) -> None:
    assert [queue, "Empty", "on"] in ottla("share-groups", "list").rows()
    settings = {"bootstrap.servers": ottla_broker.bootstrap_servers, "group.id": queue, "client.id": "ann"}
    with ShareConsumer(settings) as consumer:
        consumer.subscribe([queue])
        while not list(consumer.poll(0.2)):
            pass
        (member,) = ottla("share-groups", "describe", queue, "--members", "--format", "json").json()
        assert (member["client_id"], member["partitions"], member["assignment"]) == ("ann", 1, f"{queue}(0)")
        (state,) = ottla("share-groups", "describe", queue, "--state", "--format", "json").json()
        assert (state["state"], state["members"]) == ("Stable", 1)
        assert state["group_epoch"] == state["assignment_epoch"]
        assert "NON_EMPTY_GROUP" in ottla("share-groups", "delete", queue, code=1).err
        assert "has no members" in ottla("share-groups", "reset-offsets", queue, "--to-latest", code=1).err
        assert "has no members" in ottla("share-groups", "delete-offsets", queue, "--topic", queue, code=1).err
    assert "GROUP_ID_NOT_FOUND" in ottla("share-groups", "describe", "no-such-group", "--state", code=1).err
    ottla("share-groups", "describe", queue, "--state", "--members", code=2)


def test_what_members_hold_is_shown(ottla: Run, queue: str, ottla_broker: EmbeddedBroker) -> None:
    bootstrap = ottla_broker.bootstrap_servers
    settings = {"bootstrap.servers": bootstrap, "group.id": queue, "client.id": "ann"}
    with ShareConsumer({**settings, "share.acknowledgement.mode": "explicit"}) as consumer:
        consumer.subscribe([queue])
        while not (held := list(consumer.poll(0.2))):
            pass
        shown = ottla("share-groups", "inspect", queue)
        assert shown.rows()[0][:5] == [queue, "0", "2", str(len(held) + 1), "acquired"]
        assert f"Stable, 1 member, lag {offsets(ottla, queue)[1]}, {len(held)} record" in shown.err
        found = ottla("share-groups", "inspect", queue, "--format", "json").json()
        (part,) = found["partitions"]
        (run,) = part["runs"]
        assert (run["client_id"], run["state"], run["host"]) == ("ann", "acquired", "/127.0.0.1")
        assert found["limits"] == {"record_locks": 2000, "deliveries": 5, "lock_ms": 30_000}
        assert ottla("share-groups", "inspect", queue, "--max-ranges", "0").rows() == []
        for message in held:
            consumer.acknowledge(message)
    assert "GROUP_ID_NOT_FOUND" in ottla("share-groups", "inspect", "z", code=1).err


# ---- moving --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "offset"),
    [
        (["--to-earliest"], 0),
        (["--to-latest"], 5),
        (["--to-current"], 2),
        (["--to-offset", "3"], 3),
        (["--to-offset", "99"], 5),
        (["--by-duration", "PT1H"], 0),
        (["--to-datetime", "2200-01-01"], 5),
    ],
)
def test_offsets_are_moved(ottla: Run, queue: str, target: list[str], offset: int) -> None:
    command = ("share-groups", "reset-offsets", queue, *target)
    assert ottla(*command).rows() == [[queue, queue, "0", str(offset)]]
    assert offsets(ottla, queue) == (2, 3), "a dry run changes nothing"
    ottla(*command, "--topic", queue, "--execute")
    assert offsets(ottla, queue) == (offset, 5 - offset)


def test_an_offset_that_is_not_there_is_told(ottla: Run, queue: str) -> None:
    told = ottla("share-groups", "reset-offsets", queue, "--to-offset", "99").err
    assert told.startswith(f"{queue}:0: 99 is out of range, 0 to 5: 5 instead.\n")


def test_a_moved_group_gets_its_records_again(ottla: Run, queue: str) -> None:
    ottla("share-groups", "reset-offsets", queue, "--to-offset", "1", "--execute")
    assert take(ottla, queue, 4) == ["1", "2", "3", "4"]


def test_a_queue_goes_on_where_a_consumer_group_stopped(ottla: Run, queue: str) -> None:
    ottla("consume", queue, "--group", f"{queue}-readers", "--from-beginning", "-n", "4")
    command = ("share-groups", "reset-offsets", queue, "--from-consumer-group")
    ottla(*command, f"{queue}-readers", "--execute")
    assert offsets(ottla, queue) == (4, 1)
    assert "has committed nothing" in ottla(*command, "nobody", code=1).err


def test_offsets_and_groups_are_deleted(ottla: Run, queue: str) -> None:
    ottla("share-groups", "delete-offsets", queue, "--topic", queue)
    assert ottla("share-groups", "describe", queue).rows() == []
    ottla("share-groups", "delete", queue)
    assert queue not in ottla("share-groups", "list").out
    assert take(ottla, queue, 1, "--from-beginning") == ["0"], "a later group of that name begins anew"


def test_a_paused_group_gets_nothing_until_it_is_resumed(ottla: Run, queue: str) -> None:
    ottla("share-groups", "pause", queue)
    assert ottla("consume", queue, "--share", queue, "--timeout", "1").out == ""
    ottla("share-groups", "resume", queue)
    assert take(ottla, queue, 3) == ["2", "3", "4"]


def test_what_keeps_a_group_from_its_records_is_shown(ottla: Run, queue: str, dead_letters: str) -> None:
    ottla("share-groups", "pause", queue)
    assert [queue, "Empty", "paused"] in ottla("share-groups", "list").rows()
    (state,) = ottla("share-groups", "describe", queue, "--state", "--format", "json").json()
    assert (state["delivery"], state["paused_by"], state["letters_waiting"]) == ("paused", "ottla at 127.0.0.1", 0)
    assert abs(time.time() * 1000 - (time_or_none(state["paused_since"]) or 0)) < 60_000
    told = ottla("share-groups", "describe", queue).err
    assert told == (
        f"{queue} is paused since {state['paused_since']}, by ottla at 127.0.0.1: "
        f"`ottla share-groups resume {queue}` resumes it.\n"
    )
    ottla("share-groups", "resume", queue)
    ottla("topics", "alter", dead_letters, "--set", "errors.deadletterqueue.group.enable=false")
    assert take(ottla, queue, 3, "--ack", "reject") == ["2", "3", "4"]
    (state,) = ottla("share-groups", "describe", queue, "--state", "--format", "json").json()
    assert (state["delivery"], state["paused_since"], state["letters_waiting"]) == ("on", None, 3)
    assert ottla("share-groups", "describe", queue).err == ""


# ---- consuming -----------------------------------------------------------------------------------------------------


def test_released_records_come_again_and_rejected_ones_do_not(ottla: Run, queue: str) -> None:
    assert take(ottla, queue, 1, "--ack", "release") == ["2"]
    assert take(ottla, queue, 1, "--ack", "reject") == ["2"]
    assert take(ottla, queue, 2) == ["3", "4"]
    assert offsets(ottla, queue) == (5, 0)


def ask(ottla: Run, queue: str, stdin: str, *more: str) -> Outcome:
    return ottla("consume", queue, "--share", queue, "--ack", "ask", *more, stdin=stdin)


def test_a_person_decides(ottla: Run, queue: str) -> None:
    asked = ask(ottla, queue, "r\nwhat\nx\n\n", "-n", "3")
    assert asked.out.split() == ["2", "3", "4"]
    assert asked.err.count("[a]ccept (Enter), [r]elease, [x] reject or [q]uit?") == 4
    assert f"{queue}-0 offset 2: [a]ccept" in asked.err
    assert "1 of them went back to the group." in asked.err
    again = ask(ottla, queue, "a\n", "-n", "1")
    assert again.out.split() == ["2"]
    assert "delivered 2 times" in again.err
    assert offsets(ottla, queue) == (5, 0)


@pytest.mark.parametrize("stdin", ["", "q\n"])
def test_the_end_of_the_input_and_q_end_the_command(ottla: Run, queue: str, stdin: str) -> None:
    for _ in range(2):
        ended = ask(ottla, queue, f"a\n{stdin}" if stdin else "")
        assert "went back to the group" in ended.err
        assert ended.out.split() == (["2", "3"] if stdin else ["2"])
        if stdin:
            break
    assert offsets(ottla, queue) == ((3, 2) if stdin else (2, 3))


def test_no_record_is_delivered_that_is_not_shown(ottla: Run, queue: str) -> None:
    for shown in ("2", "3", "4"):
        asked = ask(ottla, queue, "a\n", "-n", "1")
        assert asked.out.split() == [shown]
        assert "delivered" not in asked.err


def test_looking_at_a_queue_shows_each_record_once(ottla: Run, queue: str) -> None:
    looked = ottla("consume", queue, "--share", queue, "--ack", "release", "--timeout", "0.6")
    assert looked.out.split() == ["2", "3", "4"]
    assert offsets(ottla, queue) == (2, 3)
    assert "delivered 2 times" in ask(ottla, queue, "a\n", "-n", "1").err


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that says after a moment why there may be no records."""
    monkeypatch.setattr(consume_share, "SILENT_S", 0.1)


@pytest.mark.usefixtures("impatient")
def test_where_a_group_begins_is_said(ottla: Run, ottla_topic: str) -> None:
    ottla("produce", ottla_topic, stdin="0\n")
    member = ("consume", ottla_topic, "--share", ottla_topic)
    waits = ottla(*member, "--timeout", "0.6")
    assert f"{ottla_topic} is new and waits at the end of {ottla_topic}" in waits.err
    assert "--from-beginning" in waits.err
    begins = ottla(*member, "--from-beginning", "--timeout", "0").err
    assert "stands somewhere already, so --from-beginning changes nothing" in begins
    assert "reset-offsets" in begins
    ottla("share-groups", "delete", ottla_topic)
    begins = ottla(*member, "--from-beginning", "-n", "1")
    assert begins.out == "0\n"
    assert f"share.auto.offset.reset=earliest is set for the group {ottla_topic}" in begins.err


@pytest.mark.usefixtures("impatient")
def test_a_paused_group_says_so(ottla: Run, queue: str) -> None:
    ottla("share-groups", "pause", queue)
    waits = ottla("consume", queue, "--share", queue, "--timeout", "0.6")
    assert f"{queue} is paused" in waits.err
    ottla("share-groups", "resume", queue)
    take(ottla, queue, 3)
    assert "has done all of" in ottla("consume", queue, "--share", queue, "--timeout", "0.6").err


def test_a_consumer_group_is_no_share_group(ottla: Run, queue: str) -> None:
    ottla("consume", queue, "--group", f"{queue}-readers", "--from-beginning", "-n", "1")
    refused = ottla("consume", queue, "--share", f"{queue}-readers", code=1)
    assert f"{queue}-readers is a consumer group, not a share group" in refused.err
    assert "%0" not in refused.err
    assert "There is no topic nope." in ottla("consume", "nope", "--share", queue, code=1).err


def test_a_share_group_is_no_consumer_group(ottla: Run, queue: str) -> None:
    refused = ottla("consume", queue, "--group", queue, "-n", "1", code=1).err
    assert refused == (
        f"ottla: {queue} is a share group, not a consumer group: join it with --share, or choose another name.\n"
    )


def test_json_says_how_often_a_record_was_delivered(ottla: Run, queue: str) -> None:
    for count in (1, 2):
        shown = ottla("consume", queue, "--share", queue, "--ack", "release", "-n", "1", "--format", "json")
        assert shown.json()["delivery_count"] == count
    assert "delivery_count" not in ottla("consume", queue, "-f", "-n", "1", "--format", "json").json()


def test_options_that_do_not_go_together(ottla: Run, queue: str) -> None:
    ottla("consume", queue, "--share", queue, "--group", queue, code=2)
    ottla("consume", queue, "--ack", "accept", code=2)


# ---- redriving -----------------------------------------------------------------------------------------------------


def produce(broker: EmbeddedBroker, topic: str, **headers: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce(topic, b"letter", b"key", headers=list(headers.items()), timestamp=1_700_000_000_000)
    producer.flush()


def redrive(ottla: Run, queue: str, *more: str) -> dict[str, int]:
    return ottla("share-groups", "redrive", queue, "--execute", "--format", "json", *more).json()


def test_dead_letters_go_back_whole_and_only_once(
    ottla: Run, queue: str, dead_letters: str, ottla_broker: EmbeddedBroker
) -> None:
    produce(ottla_broker, queue, colour="red")
    assert take(ottla, queue, 4, "--ack", "reject") == ["2", "3", "4", "letter"]
    planned = ottla("share-groups", "redrive", queue, "--header", "colour=red").rows()
    ((*row, first, last, client_id, reason),) = planned
    assert (client_id, reason) == ("ottla", "-"), "the member that rejected it gave no reason"
    assert row == ["0:3", queue, "0", "5", "rejected", "1", "0", "2023-11-14T22:13:20.000Z"]
    assert first == last > "2026", "one delivery failed"
    assert redrive(ottla, queue, "--header", "colour=red") == {"redriven": 1, "left_out": 3, "gone": 0}
    shown = ottla("consume", queue, "-p", "0", "-o", "-1", "-n", "1", "--format", "json").out
    record = json.loads(shown)
    assert (record["key"], record["value"], record["timestamp"]) == ("key", "letter", 1_700_000_000_000)
    assert record["headers"] == [["colour", "red"], ["ottla-redrive-count", "1"]]
    assert redrive(ottla, queue, "--rate", "100") == {"redriven": 3, "left_out": 0, "gone": 0}
    assert redrive(ottla, queue) == {"redriven": 0, "left_out": 0, "gone": 0}
    assert take(ottla, queue, 4, "--ack", "reject") == ["letter", "2", "3", "4"]
    again = ottla("share-groups", "redrive", queue, "--header", "colour=red").rows()
    assert [row[6] for row in again] == ["1"], "how often it went back is counted"


def test_letters_are_chosen(ottla: Run, queue: str, dead_letters: str) -> None:
    take(ottla, queue, 3, "--ack", "reject")
    assert redrive(ottla, queue, "--topic", "other")["left_out"] == 3
    assert redrive(ottla, queue, "--reason", "exhausted")["left_out"] == 3
    assert redrive(ottla, queue, "--since", "2200-01-01")["left_out"] == 3
    assert redrive(ottla, queue, "--until", "2000-01-01")["left_out"] == 3
    assert redrive(ottla, queue, "--since", "2000-01-01", "--until", "2200-01-01", "-n", "1")["redriven"] == 1
    assert redrive(ottla, queue, "--topic", queue, "--reason", "rejected")["redriven"] == 2


def test_letters_without_a_copy_fetch_their_record(ottla: Run, queue: str, dead_letters: str) -> None:
    ottla("configs", "alter", "group", queue, "--set", "errors.deadletterqueue.copy.record.enable=false")
    take(ottla, queue, 3, "--ack", "reject")
    ottla("records", "delete", queue, "--before", "3")
    assert redrive(ottla, queue) == {"redriven": 2, "left_out": 0, "gone": 1}
    assert take(ottla, queue, 2) == ["3", "4"]


def test_a_group_without_dead_letters(ottla: Run, queue: str) -> None:
    assert "--dead-letters" in ottla("share-groups", "redrive", queue, code=1).err
    assert "no dead-letter topic" in ottla("share-groups", "redrive", queue, "--dead-letters", "nope", code=1).err


def test_what_went_back_is_remembered_in_a_few_bytes() -> None:
    progress = Progress(10)
    for offset in (14, 12, 13, 20):
        progress.add(offset)
    assert (progress.position, progress.ranges) == (10, [(12, 15), (20, 21)])
    assert Progress.of(10, progress.text()) == progress
    progress.add(10)
    progress.add(11)
    assert (progress.position, progress.ranges) == (15, [(20, 21)])
    assert 14 in progress
    assert 16 not in progress
    assert Progress.of(3, "somebody else's") == Progress(3)


def test_a_dead_letter_topic_that_takes_nothing_is_refused(ottla: Run) -> None:
    said = ottla("configs", "alter", "group", "q", "--set", "errors.deadletterqueue.topic.name=foo", code=1).err
    assert "must begin with dlq." in said
    assert "INVALID_CONFIG" in said
