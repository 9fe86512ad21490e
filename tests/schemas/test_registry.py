"""A registry that is away, slow or hostile, and its login."""

from __future__ import annotations

import gzip
import json
import socket
from collections.abc import Iterator

import pytest

from ottla.schemas import registry as registries
from ottla.schemas.registry import (
    ASKS_MAX,
    Bounds,
    OutOfBoundsError,
    Registry,
    RegistrySettings,
    SchemaUnavailableError,
    WrongRegistryError,
)
from tests.harness.schemas.registry import SmallRegistry, small_registry


@pytest.fixture
def small() -> Iterator[SmallRegistry]:
    with small_registry() as found:
        yield found


def failure(registry: Registry, id: int = 1, bounds: Bounds | None = None) -> str:
    with pytest.raises(SchemaUnavailableError) as failed:
        registry.schema(id, bounds or Bounds())
    return str(failed.value)


ODD = {
    "a redirect": (302, {"Location": "http://127.0.0.1:1/secret"}, b"", "HTTP status 302"),
    "an error": (500, {}, b"<script>", "HTTP status 500"),
    "a page": (200, {}, b"<html>", "is not JSON"),
    "nested deep": (200, {}, b"[" * 200_000, "is not JSON"),
    "compressed": (200, {"Content-Encoding": "gzip"}, gzip.compress(b'{"schema": "1"}'), "is not JSON"),
    "a list": (200, {}, b"[]", "is not a JSON object"),
    "a number": (200, {}, b'{"schema": 7}', "has no schema"),
    "odd references": (200, {}, b'{"schema": "{}", "references": [7]}', "references of the schema cannot be read"),
    "an odd kind": (200, {}, b'{"schema": "x", "schemaType": "X\xe2\x80\xae"}', "does not know: X\\u202e"),
    "a kind that is a list": (200, {}, b'{"schema": "x", "schemaType": ["x"]}', "does not know: ['x']"),
    "half a character": (
        200,
        {},
        b'{"schema": "{}", "references": [{"name": "n", "subject": "\\ud800", "version": 1}]}',
        "The registry lacks ",
    ),
    "an endless version": (
        200,
        {},
        b'{"schema": "{}", "references": [{"name": "n", "subject": "s", "version": 1e999}]}',
        "references of the schema cannot be read",
    ),
    "too long": (200, {}, b" " * (2 << 20), "more than 1048576 bytes"),
}


@pytest.mark.parametrize("case", ODD)
def test_odd_answers(small: SmallRegistry, case: str) -> None:
    status, headers, body, why = ODD[case]
    small.answers["/schemas/ids/1"] = status, {"Content-Length": str(len(body)), **headers}, body
    registry = Registry(RegistrySettings(small.address))
    assert why in failure(registry)
    assert why in failure(registry)
    assert small.asked.count("/schemas/ids/1") == 1, "it was asked again at once"


def test_a_registry_that_is_away_is_left_alone(small: SmallRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    small.add('"int"')
    small.answers["/schemas/ids/1"] = 200, {}, None
    registry = Registry(RegistrySettings(small.address))
    assert "gives no answer" in failure(registry)
    del small.answers["/schemas/ids/1"]
    assert "gives no answer" in failure(registry, 2)
    assert len(small.asked) == 1
    monkeypatch.setattr(registries, "AWAY_S", -1.0)
    registry._away = (0.0, "")
    assert registry.schema(1, Bounds()).text == '"int"'


def test_a_registry_that_answers_nothing_costs_bounded_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        registry = Registry(RegistrySettings(f"http://127.0.0.1:{silent.getsockname()[1]}"))
        bounds = Bounds(seconds_left=0.2)
        assert "gives no answer" in failure(registry, 1, bounds)
        assert bounds.seconds_left <= 0
        with pytest.raises(OutOfBoundsError):
            registry.schema(2, bounds)


def test_references_in_a_circle_and_without_end(small: SmallRegistry) -> None:
    registry = Registry(RegistrySettings(small.address))
    circle = small.add('"int"', references=[{"name": "self", "subject": "s", "version": 1}])
    assert registry.schema(circle, Bounds()).references == (("self", '"int"'),)
    for each in range(60):
        refers = [{"name": f"n{each}", "subject": f"s{each + 1}", "version": 1}]
        small.add('"int"', subject=f"s{each}", references=refers)
    assert "more than 40 references" in failure(registry, circle + 1)
    lost = small.add('"int"', subject="x", references=[{"name": "n", "subject": "a/../b?", "version": 1}])
    assert "lacks a/../b? version 1" in failure(registry, lost)
    assert small.asked[-1] == "/subjects/a%2F..%2Fb%3F/versions/1"


def test_one_request_of_a_user_asks_a_bounded_number_of_times(small: SmallRegistry) -> None:
    registry, bounds = Registry(RegistrySettings(small.address)), Bounds()
    for id in range(1, 100):
        failure(registry, id, bounds)
    assert len(small.asked) == ASKS_MAX


def test_a_bounded_number_of_schemas_is_kept(small: SmallRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registries, "SCHEMAS_MAX", 2)
    registry = Registry(RegistrySettings(small.address))
    for each in range(3):
        registry.schema(small.add(json.dumps({"type": "int", "n": each})), Bounds())
    registry.schema(3, Bounds())
    assert len(small.asked) == 3
    registry.schema(1, Bounds())
    assert len(small.asked) == 4


def test_logins(small: SmallRegistry) -> None:
    small.add('"int"')
    for settings, sent in (
        (RegistrySettings(small.address, ("ann", "s:e")), "Basic YW5uOnM6ZQ=="),
        (RegistrySettings(small.address + "/", token="t0"), "Bearer t0"),
    ):
        settings.require_usable()
        assert "s:e" not in repr(settings)
        assert "t0" not in repr(settings)
        Registry(settings).schema(1, Bounds())
        assert small.logins[-1] == sent


@pytest.mark.parametrize(
    "settings",
    [
        RegistrySettings("registry:8081"),
        RegistrySettings("file:///etc/passwd"),
        RegistrySettings("http://ann:secret@registry"),
        RegistrySettings("https://registry?x=1"),
        RegistrySettings("http://registry", token="t"),
        RegistrySettings("http://registry", ("ann", "b")),
    ],
)
def test_addresses_that_are_refused(settings: RegistrySettings) -> None:
    with pytest.raises(WrongRegistryError):
        settings.require_usable()
    RegistrySettings("http://registry:8081/apis/ccompat/v7").require_usable()


@pytest.mark.parametrize(
    "settings",
    [
        RegistrySettings("https://a", token="secret\n"),
        RegistrySettings("https://a", token="secret\u2026"),
        RegistrySettings("https://a", ("ann", "secret\udcff")),
        RegistrySettings("https://a", ca_file="/no/such/file"),
        RegistrySettings("https://a", ca_file=__file__),
    ],
    ids=["a line end", "no ASCII", "half a character", "a missing file", "no certificates"],
)
def test_what_no_request_could_use_is_refused_beforehand(settings: RegistrySettings) -> None:
    with pytest.raises(WrongRegistryError) as refused:
        settings.require_usable()
    assert "secret" not in str(refused.value)


def test_a_reason_never_has_the_login(small: SmallRegistry) -> None:
    assert "secret" not in failure(Registry(RegistrySettings(small.address, token="secret\n")))
