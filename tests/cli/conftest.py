"""Commands run in this process, against the session's broker, as `ottla ARGUMENTS` would."""

import functools
import io
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import typer.main

from ottla.cli.main import main
from ottla.testing import EmbeddedBroker


@dataclass(frozen=True)
class Outcome:
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)

    def rows(self) -> list[list[str]]:
        """The cells of a printed table, without its heading."""
        return [line.split() for line in self.out.splitlines()[1:]]


Run = Callable[..., Outcome]


@pytest.fixture(scope="package", autouse=True)
def parsers_are_kept() -> Iterator[None]:
    """Make the parser of a noun once for all tests: a process makes one, and it is what most of these tests cost."""
    with pytest.MonkeyPatch.context() as kept:
        kept.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))
        yield


@pytest.fixture
def ottla(
    ottla_broker: EmbeddedBroker, printed: Callable[[], tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Outcome]:
    """Run a command that must succeed, or with `code=` one that must end so."""
    monkeypatch.setenv("OTTLA_BOOTSTRAP", ottla_broker.bootstrap_servers)

    def run(*arguments: str, stdin: str = "", code: int = 0) -> Outcome:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        printed()
        ended = main(list(arguments))
        sys.stdout.flush()
        out, err = printed()
        assert ended == code, f"ottla {' '.join(arguments)}: {ended}\n{out}{err}"
        if code:
            assert err.startswith("ottla: "), err
            assert "Traceback" not in err
        return Outcome(ended, out, err)

    return run
