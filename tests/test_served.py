"""What is served and what is not: registry, modules, codec, authorization table and SKIPPED.md agree."""

import re
from importlib import import_module
from pathlib import Path

import pytest

from ottla.broker.config.broker_table import BROKER_CONFIGS
from ottla.broker.security.authorizer import NEEDED
from ottla.broker.served import INTERNAL, SERVED, load
from ottla.protocol.apis import APIS

ALL = {**SERVED, **INTERNAL}
TOP = Path(__file__).resolve().parent.parent
_ROW = re.compile(r"^\| (\d+) \| (\w+) \| ([^|]*?) \|$", re.MULTILINE)


def skipped() -> list[tuple[int, str, str]]:
    section = (TOP / "SKIPPED.md").read_text().partition("## APIs not served")[2].partition("\n## ")[0]
    return [(int(key), name, why) for key, name, why in _ROW.findall(section)]


def test_every_key_is_served_or_skipped_once() -> None:
    keys = [key for key, _, _ in skipped()]
    assert sorted([*keys, *SERVED]) == sorted(APIS)


def test_skipped_keys_have_their_right_name_and_a_reason() -> None:
    for key, name, why in skipped():
        assert APIS[key].name == name
        assert why


@pytest.mark.parametrize("key", sorted(ALL))
def test_a_module_is_what_the_registry_says(key: int) -> None:
    name, low, high = ALL[key]
    module = import_module(f"ottla.broker.api.{name}")
    assert name.startswith(f"k{key:02}_")
    assert hasattr(module, "handle") != hasattr(module, "receive")
    assert module.__doc__ is not None
    low = max(low, APIS[key].min_version)
    versions = f"version {low}" if low == high else f"versions {low} to {high}"
    assert module.__doc__.startswith(f"{APIS[key].name}, key {key}, {versions}: ")
    assert high <= APIS[key].max_version


def test_no_module_is_left_out() -> None:
    found = {path.stem for path in (TOP / "src/ottla/broker/api").glob("k*.py")}
    assert found == {name for name, _, _ in ALL.values()}


def test_every_served_version_is_all_that_kafka_serves() -> None:
    """Kafka 4.3.1's ranges are the codec's, but for the two that SKIPPED.md names."""
    short = {key: rest for key, (_, *rest) in SERVED.items() if rest != [APIS[key].min_version, APIS[key].max_version]}
    assert short == {0: [0, 13], 22: [0, 5]}


def test_every_served_api_has_a_row_of_needed_operations() -> None:
    assert sorted(NEEDED) == sorted(ALL)


def test_a_module_is_imported_only_when_asked_for() -> None:
    served = load()
    handle = served[60].handle
    assert handle.__module__ == "ottla.broker.api.k60_describe_cluster"
    assert served[60].receive is None
    assert served[18].receive is not None


def test_every_setting_that_code_reads_is_in_the_table() -> None:
    literal = re.compile(r"""settings\[\s*"([a-z0-9.]+)"\s*\]""")
    read = {
        (name, path.relative_to(TOP))
        for path in (TOP / "src").rglob("*.py")
        for name in literal.findall(path.read_text())
    }
    assert len(read) > 20
    assert {(name, path) for name, path in read if name not in BROKER_CONFIGS} == set()
