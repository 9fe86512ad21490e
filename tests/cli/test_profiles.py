"""Client properties by name, and every kind of command against a broker that asks for a login."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.cli.connection import Cluster
from ottla.cli.output import CommandError, UsageError
from ottla.cli.pipeline.options import JobOptions
from ottla.cli.profiles import complete_profiles
from ottla.testing import EmbeddedBroker


@pytest.fixture
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of profiles."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    folder = tmp_path / "config" / "ottla" / "profiles"
    folder.mkdir(parents=True)
    return folder


def write(path: Path, properties: dict[str, str], mode: int = 0o600) -> None:
    path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    os.chmod(path, mode)


def test_commands_work_with_a_login_by_name(
    profiles: Path, ottla: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OTTLA_BOOTSTRAP")
    with EmbeddedBroker(
        tls=True, sasl="scram-sha-256", settings={"share.coordinator.state.topic.num.partitions": 1}
    ) as own:
        write(profiles / "prod.properties", own.client_properties())
        by_name = ("--profile", "prod")
        ottla("topics", "create", "orders", "--config", "retention.ms=86400000", *by_name)
        ottla("produce", "orders", *by_name, stdin="one\n")
        assert "one" in ottla("consume", "orders", "--from-beginning", "--exit-at-end", *by_name).out
        ottla("groups", "list", *by_name)
        assert "SIZE" in ottla("topics", "describe", "orders", *by_name).out
        ottla("share-groups", "reset-offsets", "workers", "--topic", "orders", "--to-earliest", "--execute", *by_name)
        assert "one" in ottla("consume", "orders", "--share", "workers", "-n", "1", *by_name).out
        ottla("kmq", "create", "jobs", *by_name)
        ottla("kmq", "stats", "jobs", *by_name)
        (tmp_path / "a.log").write_text("a line\n")
        ottla("ship", str(tmp_path / "a.log"), "--topic", "logs", "--once", "--state", str(tmp_path / "s"), *by_name)
        by_file = ("--config", str(profiles / "prod.properties"))
        assert {"orders", "logs"} <= {row[0] for row in ottla("topics", "list", *by_file).rows()}


def test_a_profile_is_a_file_of_this_user(profiles: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plain = {"bootstrap.servers": "h:1", "security.protocol": "SSL"}
    write(profiles / "open.properties", plain, 0o644)
    assert Cluster(profile="open").given_properties() == plain
    assert Cluster("g:2", None, ["client.id=c"], "open").given_properties() == {
        "security.protocol": "SSL",
        "client.id": "c",
    }
    assert JobOptions(cluster=Cluster(profile="open")).run_options().kafka == {"security.protocol": "SSL"}
    assert complete_profiles("o") == ["open"]
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    write_to = tmp_path / ".config" / "ottla" / "profiles"
    write_to.mkdir(parents=True)
    write(write_to / "home.properties", plain)
    assert Cluster(profile="home").given_properties() == plain


@pytest.mark.parametrize(
    "key", ["sasl.password", "ssl.key.password", "sasl.jaas.config", "sasl.oauthbearer.client.secret"]
)
@pytest.mark.parametrize("mode", [0o640, 0o604])
def test_a_secret_that_others_can_read_is_refused(profiles: Path, key: str, mode: int) -> None:
    write(profiles / "mine.properties", {key: "hush"}, mode)
    with pytest.raises(CommandError, match=rf"Other users can read .*{key}: `chmod 600 ") as refused:
        Cluster(profile="mine").given_properties()
    assert "hush" not in str(refused.value)
    write(profiles / "mine.properties", {key: "hush"})
    assert Cluster(profile="mine").given_properties() == {key: "hush"}


def test_profiles_that_can_not_be_used_are_refused(profiles: Path) -> None:
    write(profiles / "test.properties", {})
    with pytest.raises(CommandError, match=r"There is no profile prod: .* The profiles there: test"):
        Cluster(profile="prod").given_properties()
    for name in ("../test", "a/b", ".hidden"):
        with pytest.raises(UsageError, match="is no name of a profile"):
            Cluster(profile=name).given_properties()
    with pytest.raises(UsageError, match="use one of them"):
        Cluster(command_config=profiles / "test.properties", profile="test").given_properties()
