"""The one direction of imports, and that no pure room was forgotten where purity is checked."""

import tomllib
from pathlib import Path
from typing import Any

from importlinter.cli import lint_imports

TOP = Path(__file__).resolve().parent.parent
CONFIG: dict[str, Any] = tomllib.loads((TOP / "pyproject.toml").read_text())
PURE = {"protocol", "machine", "log", "groups", "share", "txn", "replica", "broker"}


def contract(name: str) -> dict[str, Any]:
    return next(each for each in CONFIG["tool"]["importlinter"]["contracts"] if each["id"] == name)


def test_imports_keep_the_contracts() -> None:
    assert lint_imports(config_filename=str(TOP / "pyproject.toml"), cache_dir=None) == 0


def test_every_pure_room_is_held_by_the_contract() -> None:
    assert {each.removeprefix("ottla.") for each in contract("pure")["source_modules"]} == PURE


def test_every_pure_room_is_strictly_typed() -> None:
    strict = {Path(each).parts[2] for each in CONFIG["tool"]["pyright"]["strict"]}
    assert strict == PURE


def test_every_room_has_its_place() -> None:
    rooms = {path.parent.name for path in (TOP / "src" / "ottla").glob("*/__init__.py")}
    placed = {room.strip() for layer in contract("direction")["layers"] for room in layer.split("|")}
    assert rooms == placed
