"""Transcripts on disk: one JSON file per theme, written to be read, and what differs between two of them.

A file holds {scenario: [step, ...]}. A step has its name, the API, the versions that answered alike ("0-3,5") and the
normalised answer, or "closed" when the broker hung up. A text that begins with "~" is a sentence for people: its words
are not compared, and that there is one where Kafka has none is no difference.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ottla.client import Connection

from . import scenarios
from .stage import Doors, Hands, Stage

HERE = Path(__file__).parent
GOLDEN = HERE / "golden"
KNOWN = HERE / "known_differences.toml"
WIDTH = 118

Transcript = list[dict[str, Any]]
Scenario = Callable[[Stage], None]


def themes() -> list[str]:
    return sorted(found.name for found in pkgutil.iter_modules(scenarios.__path__))


NEEDS = {"share_groups": 76}
"""API keys without which a theme can't be played."""


def playable(theme: str, host: str, port: int) -> bool:
    """Whether this broker serves what the theme is about."""
    with Connection(host, port) as connection:
        return NEEDS.get(theme, 0) in connection.ranges


def scenarios_of(theme: str) -> dict[str, Scenario]:
    """In the order of the file: the functions that take a Stage called `s` and nothing else."""
    module = importlib.import_module(f"{scenarios.__name__}.{theme}")
    return {
        name: function
        for name, function in vars(module).items()
        if inspect.isfunction(function)
        and function.__module__ == module.__name__
        and list(inspect.signature(function).parameters) == ["s"]
    }


def nodes_of(theme: str) -> int:
    """How many nodes the theme is asked of."""
    return getattr(importlib.import_module(f"{scenarios.__name__}.{theme}"), "NODES", 1)


def kills(theme: str) -> bool:
    """Whether the theme kills nodes, which it can do only where it was given the hands to."""
    return getattr(importlib.import_module(f"{scenarios.__name__}.{theme}"), "KILLS", False)


def is_secured(theme: str) -> bool:
    """Whether the theme is asked of a broker with passwords and ACLs."""
    return getattr(importlib.import_module(f"{scenarios.__name__}.{theme}"), "SECURED", False)


def is_own(theme: str) -> bool:
    """Whether the theme is about requests that Kafka does not serve: its transcript has Ottla's answers."""
    return getattr(importlib.import_module(f"{scenarios.__name__}.{theme}"), "OWN", False)


def play(
    scenario: Scenario,
    host: str,
    port: int,
    theme: str,
    slow: bool = False,
    hands: Hands | None = None,
    doors: Doors | None = None,
) -> Transcript:
    stage = Stage(host, port, theme, slow, nodes_of(theme), hands, doors)
    try:
        scenario(stage)
    finally:
        stage.close()
    return [entry | ({"versions": _ranges(entry["versions"])} if "versions" in entry else {}) for entry in stage.steps]


def _ranges(versions: list[int]) -> str:
    """[0, 1, 2, 5] -> "0-2,5"; versions asked more than once stand there as often."""
    runs: list[list[int]] = []
    for version in sorted(versions):
        if runs and version == runs[-1][1] + 1:
            runs[-1][1] = version
        else:
            runs.append([version, version])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


# ---- files ---------------------------------------------------------------------------------------------------------


def golden_path(theme: str) -> Path:
    return GOLDEN / f"{theme}.json"


def load(theme: str) -> dict[str, Transcript]:
    path = golden_path(theme)
    return json.loads(path.read_text()) if path.exists() else {}


def save(theme: str, played: dict[str, Transcript]) -> None:
    GOLDEN.mkdir(exist_ok=True)
    golden_path(theme).write_text(pretty(played) + "\n")


def pretty(value: Any, indent: int = 0) -> str:
    """JSON whose small parts stand on one line."""
    flat = json.dumps(value, ensure_ascii=False)
    if len(flat) + indent <= WIDTH or not isinstance(value, dict | list) or not value:
        return flat
    pad, end = " " * (indent + 1), " " * indent
    if isinstance(value, dict):
        rows = [f"{pad}{json.dumps(k, ensure_ascii=False)}: {pretty(v, indent + 1)}" for k, v in value.items()]
        return "{\n" + ",\n".join(rows) + f"\n{end}}}"
    return "[\n" + ",\n".join(pad + pretty(item, indent + 1) for item in value) + f"\n{end}]"


# ---- differences ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Difference:
    """One field that is not as the golden transcript has it. `place` is "theme/scenario/step v1-3: field.path"."""

    theme: str
    scenario: str
    step: str
    field: str
    golden: Any
    played: Any

    @property
    def place(self) -> str:
        return f"{self.theme}/{self.scenario}/{self.step}: {self.field}"

    def __str__(self) -> str:
        return f"{self.place}\n    Kafka  {_short(self.golden)}\n    here   {_short(self.played)}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) < 400 else text[:400] + " ..."


MISSING = "(absent)"


def differences(theme: str, scenario: str, golden: Transcript, played: Transcript) -> Iterator[Difference]:
    """Steps are compared version by version, so that a different grouping shows as what it is."""
    left, right = _by_version(golden), _by_version(played)
    seen: set[tuple[str, str, str]] = set()
    for key in [*left, *(k for k in right if k not in left)]:
        step, _, version = key
        for field, a, b in _walk(left.get(key, MISSING), right.get(key, MISSING), ""):
            mark = (step, field, _short([a, b]))
            if mark not in seen:
                seen.add(mark)
                yield Difference(theme, scenario, f"{step} v{version}" if version else step, field or "answer", a, b)


def _by_version(transcript: Transcript) -> dict[tuple[str, int, str], Any]:
    """(step, how often it was asked before in that version, version) to the answer."""
    out: dict[tuple[str, int, str], Any] = {}
    for entry in transcript:
        for version in _expand(entry.get("versions", "")):
            again = 0
            while (entry["step"], again, version) in out:
                again += 1
            out[entry["step"], again, version] = entry["answer"]
    return out


def versions_of(entry: dict[str, Any]) -> list[int]:
    """The versions an entry of a transcript stands for."""
    return [int(version) for version in _expand(entry.get("versions", "")) if version]


def _expand(text: str) -> Iterator[str]:
    for run in text.split(","):
        first, _, last = run.partition("-")
        if last:
            yield from map(str, range(int(first), int(last) + 1))
        else:
            yield first


def _walk(a: Any, b: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    match a, b:
        case dict(), dict():
            for name in [*a, *(k for k in b if k not in a)]:
                yield from _walk(a.get(name, MISSING), b.get(name, MISSING), f"{path}.{name}".lstrip("."))
        case list(), list() if _named(a) and _named(b):
            yield from _walk_named({x["name"]: x for x in a}, {x["name"]: x for x in b}, path)
        case list(), list() if len(a) == len(b):
            for i, (x, y) in enumerate(zip(a, b, strict=True)):
                yield from _walk(x, y, f"{path}[{i}]")
        case ((str() | None), str()) if b.startswith("~") and (a is None or a == MISSING or a.startswith("~")):
            return  # other words, or a sentence where Kafka has none
        case _ if a != b:
            yield path, a, b


def _named(rows: list[Any]) -> bool:
    names = [row.get("name") if isinstance(row, dict) else None for row in rows]
    return bool(rows) and None not in names and len(set(names)) == len(names)


def _walk_named(a: dict[str, Any], b: dict[str, Any], path: str) -> Iterator[tuple[str, Any, Any]]:
    """Rows that have names are compared by them: a row more here is one difference, not one in every row after it."""
    for name in [*a, *(k for k in b if k not in a)]:
        yield from _walk(a.get(name, MISSING), b.get(name, MISSING), f"{path}[{name}]")


# ---- known differences ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Known:
    """An entry of known_differences.toml: `step` and `field` may end in * (any rest)."""

    scenario: str
    step: str
    field: str
    reason: str

    def covers(self, difference: Difference) -> bool:
        where = f"{difference.theme}/{difference.scenario}"
        return self.scenario == where and _fits(self.step, difference.step) and _fits(self.field, difference.field)


def _fits(pattern: str, text: str) -> bool:
    return text.startswith(pattern[:-1]) if pattern.endswith("*") else text == pattern


def known_differences() -> list[Known]:
    if not KNOWN.exists():
        return []
    return [Known(**entry) for entry in tomllib.loads(KNOWN.read_text()).get("difference", [])]
