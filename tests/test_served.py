"""What is served and what is not: handlers, their specs, codec and SKIPPED.md agree."""

import re
from importlib import import_module
from pathlib import Path

import pytest

from ottla.broker.api_spec import ApiSpec, Forwarding
from ottla.broker.api_table import API_TABLE
from ottla.broker.config.broker_table import BROKER_CONFIGS
from ottla.broker.metrics import PRIVATE_KEYS_MAX
from ottla.broker.served import ADVERTISED, PRIVATE, SPECS, load
from ottla.protocol.apis import APIS, ApiKey
from ottla.protocol.private_requests import PRIVATE_FROM
from tools import write_api_table

TOP = Path(__file__).resolve().parent.parent
_ROW = re.compile(r"^\| (\d+) \| (\w+) \| ([^|]*?) \|$", re.MULTILINE)


def skipped() -> list[tuple[int, str, str]]:
    section = (TOP / "SKIPPED.md").read_text().partition("## APIs not served")[2].partition("\n## ")[0]
    return [(int(key), name, why) for key, name, why in _ROW.findall(section)]


def test_every_key_is_served_or_skipped_once() -> None:
    keys = [key for key, _, _ in skipped()]
    assert sorted([*keys, *ADVERTISED, *PRIVATE]) == sorted(APIS)


def test_own_requests_have_keys_that_kafka_and_confluent_do_not_use() -> None:
    assert PRIVATE
    assert max(ADVERTISED) < 1_000
    assert min(PRIVATE) >= PRIVATE_FROM
    assert max(PRIVATE) < PRIVATE_FROM + PRIVATE_KEYS_MAX, "the counters of a node have no place for it"
    assert all(APIS[key].flexible_since == 0 for key in PRIVATE)


def test_skipped_keys_have_their_right_name_and_a_reason() -> None:
    for key, name, why in skipped():
        assert APIS[key].name == name
        assert why


@pytest.mark.parametrize("name", sorted(API_TABLE))
def test_a_module_is_what_its_spec_says(name: str) -> None:
    module = import_module(f"ottla.broker.api.{name}")
    spec: ApiSpec = module.SPEC
    assert name == f"k{spec.key:02}_{spec.key.name.lower()}"
    assert hasattr(module, "handle") != hasattr(module, "receive")
    assert hasattr(module, "refused") == (spec.forwarding is not Forwarding.NEVER)
    assert module.__doc__ is not None
    low, high = spec.versions
    low = max(low, APIS[spec.key].min_version)
    versions = f"version {low}" if low == high else f"versions {low} to {high}"
    assert module.__doc__.startswith(f"{APIS[spec.key].name}, key {spec.key}, {versions}: ")
    assert high <= APIS[spec.key].max_version
    assert len(set(spec.acl)) == len(spec.acl)


def test_the_table_is_as_the_handlers_declare() -> None:
    assert write_api_table.main(["--check"]) == 0
    assert [import_module(f"ottla.broker.api.{name}").SPEC for name in API_TABLE] == list(API_TABLE.values())


def test_no_spec_stands_twice() -> None:
    assert len(SPECS) == len(API_TABLE)


def test_every_served_version_is_all_that_kafka_serves() -> None:
    """Kafka 4.3.1's ranges are the codec's, but for the two that SKIPPED.md names."""
    short = {
        spec.key: spec.versions
        for spec in ADVERTISED.values()
        if spec.versions != (APIS[spec.key].min_version, APIS[spec.key].max_version)
    }
    assert short == {ApiKey.PRODUCE: (0, 13), ApiKey.INIT_PRODUCER_ID: (0, 5)}


def test_a_module_is_imported_only_when_asked_for() -> None:
    served = load()
    handle = served[ApiKey.DESCRIBE_CLUSTER].handle
    assert handle.__module__ == "ottla.broker.api.k60_describe_cluster"
    assert served[ApiKey.DESCRIBE_CLUSTER].receive is None
    assert served[ApiKey.API_VERSIONS].receive is not None


def test_every_setting_that_code_reads_is_in_the_table() -> None:
    literal = re.compile(r"""settings\[\s*"([a-z0-9.]+)"\s*\]""")
    read = {
        (name, path.relative_to(TOP))
        for path in (TOP / "src").rglob("*.py")
        for name in literal.findall(path.read_text())
    }
    assert len(read) > 20
    assert {(name, path) for name, path in read if name not in BROKER_CONFIGS} == set()
