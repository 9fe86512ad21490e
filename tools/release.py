"""Builds the wheel and the source distribution and proves that each installs and runs in an environment of its own.

    python -m tools.release                    build what is here and try it; changes no file outside dist/
    python -m tools.release --version 0.2.0    first name the version in the package and in CHANGELOG.md

With --version the tree must be clean and the version higher than the last one; when anything fails, both files are as
they were. What remains is for a person: look at the diff, commit, tag, publish.

Needs the development group (`build`) and a package index for what Ottla depends on.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
import tempfile
import venv
import zipfile
from datetime import UTC, datetime
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
PACKAGE = TOP / "src" / "ottla" / "__init__.py"
CHANGELOG = TOP / "CHANGELOG.md"
VERSION = re.compile(r'^__version__ = "(\d+\.\d+\.\d+)"$', re.MULTILINE)

TRIAL = """
from confluent_kafka import Consumer, Producer
from ottla.testing import EmbeddedBroker

with EmbeddedBroker() as broker:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce("released", b"it runs")
    assert producer.flush(30) == 0
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "release", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["released"])
    message = consumer.poll(30)
    assert message is not None and message.value() == b"it runs", message
    consumer.close()
"""
"""A program of a user's: what is produced to an embedded broker is consumed from it."""


class ReleaseRefusedError(Exception):
    """Why there is no release: one sentence."""


def current_version() -> str:
    """The version that the package states. Raises ReleaseRefusedError."""
    found = VERSION.search(PACKAGE.read_text())
    if found is None:
        raise ReleaseRefusedError(f"{PACKAGE.relative_to(TOP)} states no version of the form 1.2.3.")
    return found[1]


def texts_with_version(wanted: str, today: str) -> dict[Path, str]:
    """Returns what the files that name a version shall say: the package it, and CHANGELOG.md a heading for it above
    what was unreleased. Raises ReleaseRefusedError."""
    if re.fullmatch(r"\d+\.\d+\.\d+", wanted) is None:
        raise ReleaseRefusedError(f"{wanted!r} is no version: three numbers, as in 1.2.3.")
    if [int(part) for part in wanted.split(".")] < [int(part) for part in current_version().split(".")]:
        raise ReleaseRefusedError(f"{wanted} is lower than {current_version()}.")
    changes = CHANGELOG.read_text()
    if f"\n## {wanted}" in changes:
        raise ReleaseRefusedError(f"CHANGELOG.md has {wanted} already.")
    unreleased = re.search(r"^## Unreleased\n(.*?)(?=^## |\Z)", changes, re.MULTILINE | re.DOTALL)
    if unreleased is None or not unreleased[1].strip():
        raise ReleaseRefusedError("CHANGELOG.md has nothing under Unreleased.")
    if run("git", "status", "--porcelain", cwd=TOP):
        raise ReleaseRefusedError("There are uncommitted changes; commit them first.")
    return {
        PACKAGE: VERSION.sub(f'__version__ = "{wanted}"', PACKAGE.read_text()),
        CHANGELOG: changes.replace("## Unreleased\n", f"## Unreleased\n\n## {wanted}, {today}\n", 1),
    }


def run(*command: str, cwd: Path) -> str:
    """What a command prints. Raises ReleaseRefusedError with the end of it when it fails."""
    ended = subprocess.run(command, cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if ended.returncode:
        last = "\n".join(ended.stdout.splitlines()[-20:])
        raise ReleaseRefusedError(f"{' '.join(command)} ended with {ended.returncode}:\n{last}")
    return ended.stdout


def build(version: str) -> list[Path]:
    """The wheel and the source distribution of this version, in dist/. Raises ReleaseRefusedError."""
    run(sys.executable, "-m", "build", "--outdir", str(TOP / "dist"), cwd=TOP)
    wheel = TOP / "dist" / f"ottla-{version}-py3-none-any.whl"
    source = TOP / "dist" / f"ottla-{version}.tar.gz"
    missing = [each.name for each in (wheel, source) if not each.exists()]
    if missing:
        raise ReleaseRefusedError(f"The build made no {' and no '.join(missing)}.")
    simulated = [name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("ottla/sim/")]
    if simulated:
        raise ReleaseRefusedError(f"{wheel.name} has the simulator in it: {simulated[0]}.")
    return [wheel, source]


def try_out(built: Path, version: str) -> None:
    """Install a distribution in a fresh environment and use it as a stranger would. Raises ReleaseRefusedError."""
    with tempfile.TemporaryDirectory(prefix="ottla-release-") as place:
        home = Path(place)
        venv.create(home / "env", with_pip=True)
        python = str(home / "env" / "bin" / "python")
        run(python, "-m", "pip", "install", "--disable-pip-version-check", "--quiet", str(built), cwd=home)
        said = run(str(home / "env" / "bin" / "ottla"), "--version", cwd=home).strip()
        if said != f"ottla {version}":
            raise ReleaseRefusedError(f"{built.name} installs as {said!r}.")
        run(python, "-c", TRIAL, cwd=home)
        run(python, "-m", "pip", "check", cwd=home)


def release(wanted: str | None) -> None:
    texts = {} if wanted is None else texts_with_version(wanted, datetime.now(UTC).date().isoformat())
    before = {path: path.read_text() for path in texts}
    try:
        for path, text in texts.items():
            path.write_text(text)
        version = current_version()
        for built in build(version):
            try_out(built, version)
            print(f"{hashlib.sha256(built.read_bytes()).hexdigest()}  {built.relative_to(TOP)}: installs and runs")
    except BaseException:
        for path, text in before.items():
            path.write_text(text)
        raise
    if wanted is not None:
        print(f"Now: git diff, git commit -am 'Release {version}', git tag v{version}.")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", help="the version to name, as in 1.2.3; without it nothing but dist/ changes")
    try:
        release(parser.parse_args().version)
    except ReleaseRefusedError as refused:
        print(f"No release: {refused}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
