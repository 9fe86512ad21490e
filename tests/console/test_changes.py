"""Changes: a preview with counts, the name typed, one audit line; none with --read-only."""

from __future__ import annotations

import json
import logging
from contextlib import nullcontext

import pytest

from ottla.client import Client
from ottla.client.errors import ClientError
from ottla.console.access import Clients, ReadOnlyError
from ottla.protocol.apis import ApiKey
from ottla.protocol.messages.create_topics import CreateTopicsRequest
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.read_together import InnerRequest, ReadTogetherRequest
from ottla.testing import EmbeddedBroker
from tests.harness.console.over_http import User, user


def names(broker: EmbeddedBroker) -> list[str]:
    with Client(broker.bootstrap_servers) as client:
        return [each.name for each in client.topics()]


def test_a_topic_is_created_and_deleted(
    visitor: User, console_broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ottla.console.audit")
    made = visitor.change("/topics/create", form={"name": "made", "partitions": "2"})
    assert (made.status_code, made.headers["location"]) == (303, "/topic?name=made")
    assert "Created the topic made." in visitor.get("/topic", name="made")
    assert "Created the topic made." not in visitor.get("/topic", name="made")
    preview = visitor.get("/topic/delete", name="made")
    assert "made with 2 partitions, 0 records" in preview
    wrong = visitor.change("/topic/delete", "mad", name="made")
    assert (wrong.status_code, "Type the name to confirm: made" in wrong.text) == (400, True)
    assert "made" in names(console_broker)
    gone = visitor.change("/topic/delete", "made", name="made")
    assert (gone.status_code, gone.headers["location"]) == (303, "/topics")
    assert "made" not in names(console_broker)
    lines = [json.loads(each.message) for each in caplog.records]
    assert [(each["change"], each["outcome"]) for each in lines] == [
        ("/topics/create", "done"),
        ("/topic/delete", "done"),
    ]
    assert lines[1]["details"]["topic"] == "made"


def test_a_wrong_value_shows_the_form_again(visitor: User) -> None:
    answer = visitor.post("/topics/create", {"step": "preview", "name": "x", "partitions": "many"})
    assert answer.status_code == 400
    assert "Partitions must be a number" in answer.text
    assert 'value="many"' in answer.text


def test_what_the_broker_refuses_is_said_beside_the_button(visitor: User, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ottla.console.audit")
    answer = visitor.change("/topics/create", form={"name": "clicks"})
    assert answer.status_code == 502
    assert "TOPIC_ALREADY_EXISTS" in answer.text
    assert 'name="digest"' in answer.text
    assert json.loads(caplog.records[-1].message)["outcome"].startswith("failed: ")


def test_a_preview_of_another_topic_confirms_nothing(visitor: User, console_broker: EmbeddedBroker) -> None:
    name = console_broker.create_topic()
    answer = visitor.post(
        "/topic/delete", {"step": "apply", "typed": name, "digest": "0", "asked": "{}"}, {"name": name}
    )
    assert answer.status_code == 400
    assert "has changed since the preview" in answer.text
    assert name in names(console_broker)
    console_broker.delete_topic(name)


def test_read_only_refuses_below_every_page(console_broker: EmbeddedBroker) -> None:
    with user(console_broker.bootstrap_servers, read_only=True) as found:
        assert "Create a topic" not in found.get("/topics")
        assert found.post("/topics/create", {"step": "preview", "name": "x"}).status_code == 404
    clients = Clients(console_broker.bootstrap_servers, None, None, deadline_s=30, read_only=True)
    create = CreateTopicsRequest(topics=[], timeout_ms=1_000)
    with pytest.raises(ReadOnlyError):
        clients.read(lambda lease: lease.client.send(create))
    with pytest.raises(ReadOnlyError):
        clients.read(lambda lease: lease.client.send(MetadataRequest(None, allow_auto_topic_creation=True)))
    with pytest.raises(ReadOnlyError):
        clients.change(lambda lease: lease.client.send(create))
    clients.close()


def test_requests_that_are_sent_together_may_only_describe(console_broker: EmbeddedBroker) -> None:
    clients = Clients(console_broker.bootstrap_servers, None, None, deadline_s=30, read_only=False)
    for key, is_allowed in ((ApiKey.LIST_GROUPS, True), (ApiKey.CREATE_TOPICS, False), (ApiKey.FETCH, False)):
        asked = ReadTogetherRequest([InnerRequest(ApiKey.LIST_GROUPS, 5, b""), InnerRequest(key, 5, b"")])
        with nullcontext() if is_allowed else pytest.raises(ReadOnlyError):
            clients.read(lambda lease, asked=asked: lease.client.send(asked, 0))
    clients.close()


def test_a_page_that_reads_cannot_change_either(console_broker: EmbeddedBroker) -> None:
    clients = Clients(console_broker.bootstrap_servers, None, None, deadline_s=30, read_only=False)
    create = CreateTopicsRequest(topics=[], timeout_ms=1_000)
    with pytest.raises(ReadOnlyError):
        clients.read(lambda lease: lease.client.send(create))
    clients.change(lambda lease: lease.client.send(create))
    with pytest.raises(ReadOnlyError):
        clients.read(lambda lease: lease.client.send(create))
    clients.close()


def test_an_old_connection_that_was_closed_is_replaced(console_broker: EmbeddedBroker) -> None:
    with EmbeddedBroker() as broker:
        clients = Clients(broker.bootstrap_servers, None, None, deadline_s=30, read_only=True)
        assert clients.read(lambda lease: lease.client.metadata([]).brokers)
        broker.restart()
        assert clients.read(lambda lease: lease.client.metadata([]).brokers)
        clients.close()
    with pytest.raises(ClientError):
        clients.read(lambda lease: lease.client.metadata([]).brokers)
