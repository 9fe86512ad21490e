"""`ottla consume --schema-registry`, and how options, properties and the environment name a registry."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.cli.connection import Cluster
from ottla.cli.output import CommandError, UsageError
from ottla.cli.schemas import registry_of
from ottla.client import Client
from ottla.protocol.records import Record, build_batch
from ottla.testing import EmbeddedBroker
from tests.harness.schemas.registry import SmallRegistry, small_registry

from .conftest import Run

KEY, VALUE, UNKNOWN = b"\0\0\0\0\1\x06ann", b"\0\0\0\0\2\2\6", b"\0\0\0\0\x63\1"


@pytest.fixture(scope="module")
def registry() -> Iterator[SmallRegistry]:
    with small_registry() as found:
        found.add('"string"', subject="names")
        count = {"type": "record", "name": "N", "fields": [{"name": "n", "type": ["null", "int"]}]}
        found.add(json.dumps(count), subject="counts")
        yield found


def test_consume_prints_what_is_decoded(
    ottla: Run, ottla_broker: EmbeddedBroker, ottla_topic: str, registry: SmallRegistry
) -> None:
    records = [Record(0, 1, KEY, VALUE), Record(1, 1, b"k", UNKNOWN), Record(2, 1, None, UNKNOWN)]
    with Client(ottla_broker.bootstrap_servers) as client:
        client.produce_raw(ottla_topic, 0, bytes(build_batch(records)))
    options = ("consume", ottla_topic, "-p", "0", "-o", "0", "-e", "-n", "3", "--schema-registry", registry.address)
    done = ottla(*options, "--format", "json")
    first, second, _ = (json.loads(line) for line in done.out.splitlines())
    assert (first["key"], first["value"]) == ("ann", {"n": 3})
    assert (first["key_schema"], first["value_schema"]) == ("Avro, schema 1, string", "Avro, schema 2, N")
    assert (second["key"], second["value"], "key_schema" in second) == ("k", UNKNOWN.decode(), False)
    assert done.err.count("Not decoded, schema 99: The registry has no schema 99.") == 1
    assert ottla(*options, "--format", r"%k %s %S\n").out.splitlines()[0] == f'"ann" {{"n": 3}} {len(VALUE)}'
    assert ottla(*options, "--keys").out.splitlines()[0] == '"ann"\t{"n": 3}'


def test_produce_encodes_what_consume_prints(ottla: Run, ottla_topic: str, registry: SmallRegistry) -> None:
    there = ("--schema-registry", registry.address)
    sending = ("produce", ottla_topic, "-p", "0", *there)
    reading = ("consume", ottla_topic, "-p", "0", "-o", "0", "-e", *there)
    keyed = ("--key-schema", "names", "--value-schema", "counts:1")
    ottla(*sending, *keyed, "-K", "\t", stdin='"ann"\t{"n": 3}\n')
    printed = ottla(*reading, "--format", "json").out
    ottla(*sending, *keyed, "--format", "json", stdin=printed)
    ottla(*sending, *keyed, "--key", '"ann"', stdin='{"n": 3}\n')
    assert ottla(*reading, "--format", r"%k %s\n").out == '"ann" {"n": 3}\n' * 3
    raw = [json.loads(line) for line in ottla(*reading[:-2], "--format", "json").out.splitlines()]
    assert [(each["key"], each["value"]) for each in raw] == [(KEY.decode(), VALUE.decode())] * 3
    wrong = ottla(*sending, *keyed, "-K", "\t", stdin='"ann"\t{"n": "x"}\n', code=1)
    assert (
        "Line 1 cannot be sent because of its value. It does not fit Avro, schema 2: the field n must be" in wrong.err
    )
    assert "no subject lost, version 7" in ottla(*sending, "--value-schema", "lost:7", code=1).err
    assert "A record cannot be sent because of its key." in ottla(*sending, *keyed, "-k", "a", code=2).err


def test_a_file_or_the_environment_names_the_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        "schema.registry.url=https://a\nschema.registry.basic.auth.user.info=ann:b:c\nsecurity.protocol=SSL\n"
    )
    cluster = Cluster(command_config=file)
    found = registry_of(cluster, None)
    assert found is not None
    assert (found.url, found.login, found.token) == ("https://a", ("ann", "b:c"), None)
    assert cluster.given_properties() == {"security.protocol": "SSL"}
    monkeypatch.setenv("OTTLA_SCHEMA_REGISTRY_TOKEN", "t")
    other = registry_of(Cluster(), "https://b")
    assert other is not None
    assert (other.url, other.login, other.token) == ("https://b", None, "t")
    assert registry_of(Cluster(), None) is None


def test_wrong_registries_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"list of processes: .* OTTLA_SCHEMA_REGISTRY_LOGIN"):
        registry_of(Cluster(properties=["schema.registry.basic.auth.user.info=a:b"]), "https://a")
    with pytest.raises(UsageError, match=r"does not support .* schema\.registry\.basic\.auth\.userinfo"):
        registry_of(Cluster(properties=["schema.registry.basic.auth.userinfo=a:b"]), "https://a")
    for url in ("a:8081", "http://ann:b@a"):
        with pytest.raises(UsageError, match="cannot be the address of a registry"):
            registry_of(Cluster(), url)
    monkeypatch.setattr("ottla.schemas.decoder.NEEDED", ("no_such_library.at_all",))
    with pytest.raises(CommandError, match="extra `schemas`: no_such_library"):
        registry_of(Cluster(), "https://a")
