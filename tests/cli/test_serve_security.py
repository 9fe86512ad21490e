"""`ottla serve` with TLS, SASL and its first user: the settings that the options become, and a node as a process."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.broker.config.unserved import AUTHORIZER, AUTHORIZERS
from ottla.cli.serve import options_of, parser
from ottla.cli.server_properties import NotServedError
from ottla.client import BrokerError, Client
from ottla.client.errors import check
from ottla.client.sasl import Login
from ottla.client.set_up import ClientSetUp
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.testing import EmbeddedBroker
from tests.harness.certificates import Authority

TLS = ("--tls-cert", "node.pem", "--tls-key", "node.key")


def told(*arguments: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """The listeners and settings of a node with these arguments."""
    options, _ = options_of(parser().parse_args(arguments))
    return options.listen, options.settings


def test_options_are_kafkas_settings() -> None:
    assert told(*TLS) == (
        ("SSL://127.0.0.1:9092",),
        {"ssl.keystore.location": "node.pem", "ottla.ssl.key.location": "node.key"},
    )
    listen, settings = told(*TLS, "--tls-ca", "ca.pem", "--listen", "0.0.0.0:1", "--listen", "PLAINTEXT://127.0.0.1:2")
    assert listen == ("SSL://0.0.0.0:1", "PLAINTEXT://127.0.0.1:2")
    assert (settings["ssl.truststore.location"], settings["ssl.client.auth"]) == ("ca.pem", "required")
    listen, settings = told(*TLS, "--sasl", "scram-sha-512,Plain", "--add-user", "ada")
    assert listen == ("SASL_SSL://127.0.0.1:9092",)
    assert settings["sasl.enabled.mechanisms"] == "SCRAM-SHA-512,PLAIN"
    assert (settings[AUTHORIZER], settings["super.users"]) == (AUTHORIZERS[0], "User:ada")
    listen, settings = told("--sasl", "plain", "--add-user", "ada", "--set", f"{AUTHORIZER}=")
    assert listen == ("SASL_PLAINTEXT://127.0.0.1:9092",)
    assert "super.users" not in settings


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--tls-key", "node.key"), "--tls-key needs --tls-cert"),
        (("--tls-cert", ""), "--tls-cert is empty"),
        (("--sasl", ""), "--sasl is empty"),
        ((*TLS, "--set", "ssl.keystore.location=other.pem"), r"--tls-cert and ssl\.keystore\.location differ"),
        ((*TLS, "--set", "listeners=SSL://:1"), "--tls-cert and listeners both say"),
        (("--sasl", "gssapi"), "--sasl can name .*scram-sha-512.*, not GSSAPI"),
        (("--sasl", ","), "not nothing"),
        (("--sasl", "plain", "--set", "sasl.enabled.mechanisms=SCRAM-SHA-256"), "--sasl and sasl"),
        (("--add-user", "ada"), "--add-user needs a listener on which users log in"),
        (("--add-user", ""), "can't be empty"),
        (("--password-file", "f"), "is for the user of --add-user"),
    ],
)
def test_options_that_contradict_each_other_are_refused(arguments: tuple[str, ...], says: str) -> None:
    with pytest.raises(NotServedError, match=says) as refused:
        told(*arguments)
    assert refused.value.code == 2


def test_a_new_node_gets_its_first_user(tmp_path: Path) -> None:
    """Who is there after a restart without the password, and may do everything."""
    authority = Authority(tmp_path)
    pem = str(authority.issue("127.0.0.1"))
    arguments = ["--tls-cert", pem, "--sasl", "scram-sha-256", "--add-user", "ada", "--listen", "127.0.0.1:0"]
    command = [sys.executable, "-m", "ottla", "serve", "--data", str(tmp_path / "node"), "--log-format", "json"]
    without = {name: value for name, value in os.environ.items() if name != "OTTLA_PASSWORD"}
    ended = subprocess.run(
        [*command, *arguments], env=without, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, "--password-file FILE" in ended.stderr) == (2, True)
    for environment in ({**without, "OTTLA_PASSWORD": "lovelace"}, without):
        node = subprocess.Popen(
            [*command, *arguments], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            assert node.stdout is not None
            set_up = ClientSetUp(json.loads(node.stdout.readline())["address"], str(authority.file))
            topic = CreatableTopic(f"t{len(environment)}", 1, 1)
            with Client(
                set_up.bootstrap, tls=set_up.context(), login=Login("SCRAM-SHA-256", "ada", "lovelace")
            ) as client:
                (answer,) = client.send(CreateTopicsRequest(topics=[topic], timeout_ms=30_000)).topics
                check(answer.error_code, topic.name, answer.error_message)
        finally:
            node.terminate()
            _, log = node.communicate(timeout=60)
        assert "lovelace" not in log
        assert ("Added the user ada." in log) == ("OTTLA_PASSWORD" in environment)


@pytest.mark.parametrize("decided", [False, True])
def test_acls_are_on_as_soon_as_there_is_a_user(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, decided: bool
) -> None:
    caplog.set_level(logging.WARNING, "ottla.server")
    with EmbeddedBroker(sasl="plain", users={"ada": "lovelace"}, directory=tmp_path) as broker:
        broker.create_topic("t")
    settings = {"listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT", "sasl.enabled.mechanisms": "PLAIN"}
    login = Login("PLAIN", "ada", "lovelace")
    with (
        EmbeddedBroker(directory=tmp_path, settings=settings | ({AUTHORIZER: ""} if decided else {})) as broker,
        Client(broker.bootstrap_servers, login=login) as client,
    ):
        if decided:
            assert client.topic("t").leaders == (1,)
        else:
            with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
                client.topic("t")
    assert ("ACLs are on, because there are users" in caplog.text) == (not decided)
