"""A release is refused in a sentence before anything is built, and leaves the tree as it was."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from ottla import __version__

TOP = Path(__file__).resolve().parent.parent
NAMED = (TOP / "src" / "ottla" / "__init__.py", TOP / "CHANGELOG.md")


@pytest.mark.parametrize(
    ("version", "why"),
    [
        ("next", "'next' is no version: three numbers, as in 1.2.3."),
        ("0.0.1", f"0.0.1 is lower than {__version__}."),
    ],
)
def test_a_release_is_refused(version: str, why: str) -> None:
    """Not even written as they are: a process that starts beside it could read an empty package."""
    before = [(path.read_bytes(), path.stat().st_mtime_ns) for path in NAMED]
    ended = subprocess.run(
        [sys.executable, "-m", "tools.release", "--version", version], cwd=TOP, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stderr) == (1, f"No release: {why}\n")
    assert [(path.read_bytes(), path.stat().st_mtime_ns) for path in NAMED] == before


def test_the_licence_goes_with_the_package() -> None:
    assert "Apache License" in (TOP / "LICENSE").read_text()[:200]
    assert 'license-files = ["LICENSE"]' in (TOP / "pyproject.toml").read_text()


def test_the_wheel_leaves_the_simulator_out_and_needs_nothing_of_it() -> None:
    """The top layer of the import contracts is what no other package imports."""
    settings = tomllib.loads((TOP / "pyproject.toml").read_text())
    assert settings["tool"]["hatch"]["build"]["targets"]["wheel"]["exclude"] == ["src/ottla/sim"]
    (direction,) = [each for each in settings["tool"]["importlinter"]["contracts"] if each["id"] == "direction"]
    assert direction["layers"][0] == "sim"
    assert direction["exhaustive"]
