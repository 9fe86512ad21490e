"""`ottla configs history`: who changed configs, on a real node, and on nodes that do not remember it."""

from typing import Any

import pytest

from ottla.client import Client, observations, private_requests
from ottla.client.errors import UnsupportedVersionError
from ottla.testing import EmbeddedBroker

from .conftest import Run


def test_changes_are_shown_with_their_authors_newest_first(
    ottla: Run, ottla_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = ottla_broker.create_topic(configs={"segment.ms": "7000000"})
    for value in ("5000000", "6000000"):
        ottla("configs", "alter", "topic", name, "--set", f"retention.ms={value}")
    rows = ottla("configs", "history", "topic", name, "--format", "json").json()
    assert [(row["config"], row["old"], row["new"]) for row in rows] == [
        ("retention.ms", "5000000", "6000000"),
        ("retention.ms", None, "5000000"),
        ("segment.ms", None, "7000000"),
    ]
    assert {(row["kind"], row["name"], row["principal"], row["host"]) for row in rows} == {
        ("topic", name, "User:ANONYMOUS", "127.0.0.1")
    }
    assert [row["name"] for row in ottla("configs", "history", "topic", "--format", "json").json()][:3] == 3 * [name]
    assert "No node remembers a change" in ottla("configs", "history", "broker", "1").err
    for kind, wrong, code in (("topic", "no-such-topic", 1), ("broker", "99", 1), ("broker", "abc", 2)):
        assert wrong in ottla("configs", "history", kind, wrong, code=code).err

    def mixed(client: Client, messages: dict[int, Any], least: int) -> dict[int, Any]:
        return {**private_requests.ask_nodes(client, messages, least), 99: UnsupportedVersionError("no")}

    monkeypatch.setattr(observations, "ask_nodes", mixed)
    assert "Node 99 remembers no changes" in ottla("configs", "history", "topic", name).err

    def unserved(client: object, messages: dict[int, object], least: int) -> dict[int, UnsupportedVersionError]:
        return {node_id: UnsupportedVersionError("no") for node_id in messages}

    monkeypatch.setattr(observations, "ask_nodes", unserved)
    assert "only Ottla's nodes do" in ottla("configs", "history", code=1).err
