"""`ottla groups` against a real node: lag tables, resets, deletion."""

from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from ottla.cli import resets
from ottla.cli.output import CommandError
from ottla.testing import EmbeddedBroker

from .conftest import Run


@pytest.fixture
def group(ottla: Run, ottla_topic: str) -> str:
    """A group without members that has read two of five records; it has the topic's name."""
    ottla("produce", ottla_topic, stdin="0\n1\n2\n3\n4\n")
    ottla("consume", ottla_topic, "--group", ottla_topic, "--from-beginning", "-n", "2")
    return ottla_topic


def current(ottla: Run, group: str) -> int | None:
    rows = ottla("groups", "describe", group, "--format", "json").json()
    return rows[0]["current_offset"] if rows else None


def test_lag_is_shown_under_kafkas_names(ottla: Run, group: str) -> None:
    shown = ottla("groups", "describe", group)
    assert shown.out.splitlines()[0].split() == [
        "GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID", "HOST", "CLIENT-ID",
    ]  # fmt: skip
    assert shown.rows() == [[group, group, "0", "2", "5", "3", "-", "-", "-"]]


def test_states_and_lists(ottla: Run, group: str) -> None:
    assert [group, "Classic", "Empty"] in ottla("groups", "list").rows()
    (row,) = ottla("groups", "describe", group, "--state", "--format", "json").json()
    assert (row["state"], row["members"]) == ("Empty", 0)
    assert ottla("groups", "describe", "no-such-group", code=1).err == "ottla: There is no group no-such-group.\n"


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_and_what_they_own(ottla: Run, group: str, ottla_broker: EmbeddedBroker, protocol: str) -> None:
    conf = {"bootstrap.servers": ottla_broker.bootstrap_servers, "group.id": group, "client.id": "ann"}
    consumer = Consumer({**conf, "group.protocol": protocol})
    try:
        consumer.subscribe([group])
        while not consumer.assignment():
            consumer.poll(0.1)
        (member,) = ottla("groups", "describe", group, "--members", "--format", "json").json()
        assert (member["client_id"], member["partitions"], member["assignment"]) == ("ann", 1, f"{group}(0)")
        assert [group, protocol.capitalize(), "Stable"] in ottla("groups", "list").rows()
        (row,) = ottla("groups", "describe", group, "--state", "--format", "json").json()
        assert (row["state"], row["members"]) == ("Stable", 1)
        (row,) = ottla("groups", "describe", group, "--format", "json").json()
        assert row["consumer_id"] == member["consumer_id"]
        assert "has no members" in ottla("groups", "reset-offsets", group, "--all-topics", "--to-latest", code=1).err
        assert "NON_EMPTY_GROUP" in ottla("groups", "delete", group, code=1).err
        assert "GROUP_SUBSCRIBED_TO_TOPIC" in ottla("groups", "delete-offsets", group, "--topic", group, code=1).err
    finally:
        consumer.close()
    ottla("groups", "reset-offsets", group, "--all-topics", "--to-latest", "--execute")
    assert current(ottla, group) == 5
    assert [group, protocol.capitalize(), "Empty"] in ottla("groups", "list").rows()
    ottla("groups", "delete-offsets", group, "--topic", group)
    assert current(ottla, group) is None
    ottla("groups", "delete", group)
    assert group not in ottla("groups", "list").out


def test_what_holds_readers_back(ottla: Run, group: str, ottla_broker: EmbeddedBroker) -> None:
    assert ottla("groups", "describe", group).err == ""
    settings = {"bootstrap.servers": ottla_broker.bootstrap_servers, "log_level": 0}
    producer = Producer({**settings, "transactional.id": f"tx-{group}"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(group, b"5")
    producer.flush(30)
    assert f"block readers of committed records in {group}(0)" in ottla("groups", "describe", group).err
    (row,) = ottla("groups", "describe", group, "--held-back", "--format", "json").json()
    assert (row["current_offset"], row["last_stable_offset"], row["log_end_offset"]) == (2, 5, 6)
    assert row["transactional_id"] == f"tx-{group}"
    assert 0 <= row["open_ms"] < 60_000
    producer.commit_transaction(30)
    assert ottla("groups", "describe", group, "--held-back", "--format", "json").json() == []
    refused = ottla("groups", "describe", group, "--held-back", "--members", code=2)
    assert "Choose one" in refused.err


@pytest.mark.parametrize(
    ("target", "offset"),
    [
        (["--to-earliest"], 0),
        (["--to-latest"], 5),
        (["--to-current"], 2),
        (["--to-offset", "3"], 3),
        (["--to-offset", "99"], 5),
        (["--shift-by", "2"], 4),
        (["--shift-by", "-9"], 0),
        (["--by-duration", "PT1H"], 0),
        (["--to-datetime", "2000-01-01T00:00:00Z"], 0),
        (["--to-datetime", "2200-01-01"], 5),
    ],
)
def test_offsets_are_moved(ottla: Run, group: str, target: list[str], offset: int) -> None:
    command = ("groups", "reset-offsets", group, "--topic", group, *target)
    assert ottla(*command).rows() == [[group, group, "0", str(offset)]]
    assert current(ottla, group) == 2, "a dry run changes nothing"
    ottla(*command, "--execute")
    assert current(ottla, group) == offset


def test_offsets_travel_through_a_file(ottla: Run, group: str, tmp_path: Path) -> None:
    exported = ottla("groups", "reset-offsets", group, "--all-topics", "--to-earliest", "--export")
    assert exported.out == f"{group},0,0\n"
    file = tmp_path / "offsets.csv"
    file.write_text(exported.out)
    ottla("groups", "reset-offsets", group, "--from-file", str(file), "--execute")
    assert current(ottla, group) == 0


def test_offsets_and_groups_are_deleted(ottla: Run, group: str) -> None:
    ottla("groups", "delete-offsets", group, "--topic", f"{group}:0")
    assert current_or_gone(ottla, group) is None
    ottla("groups", "reset-offsets", group, "--topic", group, "--to-earliest", "--execute")
    ottla("groups", "delete", group)
    assert group not in ottla("groups", "list").out


def current_or_gone(ottla: Run, group: str) -> int | None:
    return current(ottla, group) if group in ottla("groups", "list").out else None


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--to-earliest", "--to-latest"],
        ["--to-datetime", "yesterday"],
        ["--by-duration", "1 hour"],
        ["--by-duration", "P99999999999999999D"],
        ["--to-datetime", "0001-01-01"],
        ["--from-file", "/no/such/file"],
        ["--to-earliest", "--execute", "--dry-run"],
    ],
)
def test_a_reset_that_makes_no_sense_is_refused(ottla: Run, group: str, arguments: list[str]) -> None:
    missing = "/no/such/file" in arguments
    ottla("groups", "reset-offsets", group, "--topic", group, *arguments, code=1 if missing else 2)
    ottla("groups", "reset-offsets", group, "--to-earliest", code=2)
    ottla("groups", "reset-offsets", group, "--topic", f"{group}:9", "--to-earliest", code=1)


@pytest.mark.parametrize(
    ("text", "millis"),
    [("PT1S", 1000), ("P1D", 86_400_000), ("P1DT2H3M4.5S", 93_784_500), ("pt30m", 1_800_000)],
)
def test_durations(text: str, millis: int) -> None:
    assert resets.parse_duration(text) == millis


@pytest.mark.parametrize("text", ["", "P", "PT", "1H", "P1H", "PT1D", "P1DT"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(CommandError):
        resets.parse_duration(text)
