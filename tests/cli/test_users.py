"""`ottla users` against a real node."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.client import BrokerError, Client
from ottla.client.sasl import Login
from ottla.testing import EmbeddedBroker


def test_users_are_added_listed_changed_and_removed(
    ottla: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("lovelace\n")
    with EmbeddedBroker() as own:
        where = ("--bootstrap", own.bootstrap_servers)
        ottla("users", "add", "ada", "--password-file", str(secret), *where)
        assert ottla("users", "list", *where).rows() == [
            ["ada", "SCRAM-SHA-256", "8192"],
            ["ada", "SCRAM-SHA-512", "8192"],
        ]
        again = ottla("users", "add", "ada", "--password-file", str(secret), *where, code=1)
        assert "ottla users password ada" in again.err
        monkeypatch.setenv("OTTLA_PASSWORD", "byron")
        ottla("users", "password", "ada", *where)
        ottla("users", "add", "bob", *where)
        assert "There is no user eve" in ottla("users", "password", "eve", *where, code=1).err
        assert "Nothing was changed" in ottla("users", "remove", "bob", *where, stdin="n\n", code=1).err
        ottla("users", "remove", "bob", "--yes", *where)
        assert "There is no user bob" in ottla("users", "remove", "bob", "--yes", *where, code=1).err
        own.restart()
        assert {row[0] for row in ottla("users", "list", *where).rows()} == {"ada"}


def test_a_password_is_never_an_argument(
    ottla: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OTTLA_PASSWORD", raising=False)
    assert "--password-file" in ottla("users", "add", "ada", code=2).err
    assert "can't be read" in ottla("users", "add", "ada", "--password-file", str(tmp_path / "none"), code=1).err
    empty = tmp_path / "empty"
    empty.write_text("\n")
    assert "can't be empty" in ottla("users", "add", "ada", "--password-file", str(empty), code=1).err
    ottla("users", "add", "ada", "secret", code=2)


def test_a_user_of_the_command_line_can_log_in(
    ottla: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And commands use a login, Ottla's own client among them."""
    monkeypatch.setenv("OTTLA_PASSWORD", "lovelace")
    with EmbeddedBroker(directory=tmp_path / "node") as own:
        ottla("users", "add", "ada", "--bootstrap", own.bootstrap_servers)
    settings = {
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "authorizer.class.name": "",
    }
    with EmbeddedBroker(directory=tmp_path / "node", settings=settings) as own:
        config = tmp_path / "client.properties"
        config.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\n"
            "sasl.username=ada\nsasl.password=lovelace\n"
        )
        where = ("--bootstrap", own.bootstrap_servers, "--command-config", str(config))
        assert "ada" in ottla("users", "list", *where).out
        ottla("topics", "create", "t", *where)
        ottla("produce", "t", *where, stdin="one\ntwo\n")
        assert ottla("consume", "t", "--from-beginning", "--exit-at-end", *where).out == "one\ntwo\n"
        with (
            pytest.raises(BrokerError, match="invalid credentials"),
            Client(own.bootstrap_servers, login=Login("SCRAM-SHA-512", "ada", "guess")) as client,
        ):
            client.metadata([])
