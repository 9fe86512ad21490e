"""The one direction of imports, without a circle, and that no pure room was forgotten where purity is checked."""

import re
import subprocess
import sys
import tomllib
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from grimp import ImportGraph, build_graph

TOP = Path(__file__).resolve().parent.parent
CONFIG: dict[str, Any] = tomllib.loads((TOP / "pyproject.toml").read_text())
DESIGN = (TOP / "ARCHITECTURE.md").read_text()
PURE = {"protocol", "machine", "log", "groups", "share", "txn", "replica", "broker"}


def contract(name: str) -> dict[str, Any]:
    return next(each for each in CONFIG["tool"]["importlinter"]["contracts"] if each["id"] == name)


def test_imports_keep_the_contracts() -> None:
    """In a process of its own: it turns off the loggers that are there, and tests look into those."""
    command = "from importlinter.cli import lint_imports_command as lint; lint()"
    subprocess.run([sys.executable, "-c", command, "--no-cache"], cwd=TOP, check=True)


def circle(graph: ImportGraph) -> list[str]:
    """Modules of which each imports the next, the last one the first; none where there is no such circle."""
    try:
        TopologicalSorter({each: graph.find_modules_directly_imported_by(each) for each in graph.modules}).prepare()
    except CycleError as found:
        return list(reversed(found.args[1]))
    return []


def test_no_imports_go_in_a_circle() -> None:
    """Imports under TYPE_CHECKING and in functions count."""
    graph = build_graph("ottla", cache_dir=None, exclude_type_checking_imports=False)
    assert not circle(graph)
    graph.add_import(importer="ottla.log.files", imported="ottla.log.log")
    planted = circle(graph)
    assert {"ottla.log.files", "ottla.log.log"} <= set(planted)


def test_every_pure_room_is_held_by_the_contract() -> None:
    assert {each.removeprefix("ottla.") for each in contract("pure")["source_modules"]} == PURE


def test_every_pure_room_is_strictly_typed() -> None:
    strict = {Path(each).parts[2] for each in CONFIG["tool"]["pyright"]["strict"]}
    assert strict == PURE


def test_every_room_has_its_place() -> None:
    rooms = {path.parent.name for path in (TOP / "src" / "ottla").glob("*/__init__.py")}
    placed = {room.strip() for layer in contract("direction")["layers"] for room in layer.split("|")}
    assert rooms == placed


def section_of_rooms() -> tuple[str, str]:
    """ARCHITECTURE.md, section 3: the tree of rooms, and which may import which."""
    section = DESIGN[DESIGN.index("\n## 3. ") : DESIGN.index("\n## 4. ")]
    at = section.index("\nImports go in one direction")
    return section[:at], section[at:]


def test_the_design_says_the_layers() -> None:
    said = re.findall(r"(?:^    \w.* -> .*\n)(?:^        -> .*\n)*", section_of_rooms()[1], re.MULTILINE)
    assert [layers(each.split("->")) for each in said] == [
        layers(contract(name)["layers"]) for name in ("direction", "broker")
    ]


def layers(said: list[str]) -> list[set[str]]:
    return [{room.strip() for room in layer.split("|")} for layer in said]


def test_the_design_lists_the_rooms() -> None:
    said = set(re.findall(r"(?<![\w./])([a-z]+)/", section_of_rooms()[0]))
    rooms = {path.parent.name for path in (TOP / "src" / "ottla").rglob("__init__.py")} - {"ottla"}
    assert said - {"src"} == rooms - {"pipeline"}, "`cli/pipeline` has no line of its own"
