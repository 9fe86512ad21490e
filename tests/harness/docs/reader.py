"""A reader who pastes: every block of a page, top to bottom, in a fresh directory beside a fresh broker.

Knows the languages of the blocks. `sh` goes to a shell and `python` to one interpreter for the page, both in order;
what a Python block's `# -> text` lines say is what it must print; a Python block that defines a `test_...` goes to
pytest. A shell block that opens with `# in a terminal of its own` goes on running beside the others, and ends well when
it is told to. `text`, `ini` and the like are only looked at. Nothing else is known: a block that needs what the page
did not make fails.

The page's `localhost:9092` is the address of the broker at hand; commands find it in OTTLA_BOOTSTRAP.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tools.node_process import free_port

TOP = Path(__file__).resolve().parents[3]
ADDRESS = "localhost:9092"
TERMINAL = "# in a terminal of its own"
READ_ONLY = {"text", "ini", "json", "properties", "console", "yaml"}
PATIENCE_S = 120
BLOCK = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block of a page. `line`: where it opens, from 1."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: str) -> list[Block]:
    """The fenced blocks of a page, named from the project's top."""
    text = (TOP / page).read_text()
    return [
        Block(page, text.count("\n", 0, found.start()) + 1, found["language"], found["text"])
        for found in BLOCK.finditer(text)
    ]


@dataclass
class Reader:
    """Pastes blocks. `pipeline`: runs an `ottla pipeline` line on a Spark session that is there already, or None."""

    directory: Path
    bootstrap: str
    pipeline: Callable[[str], int] | None = None
    names: dict[str, object] = field(default_factory=lambda: {"__name__": "page"})
    _terminals: list[tuple[Block, subprocess.Popen[str]]] = field(default_factory=list)

    def paste(self, block: Block) -> None:
        """Run one block. Raises AssertionError with its place when it does not do what the page says."""
        if block.language == "python":
            self._paste_python(block)
        elif block.language == "sh":
            self._paste_shell(block)
        else:
            assert block.language in READ_ONLY, f"{block}: a block in {block.language or 'no language'}"

    def leave(self) -> None:
        """End what still runs in terminals of its own, as Ctrl-C would; each must end well."""
        self.names.clear()
        gc.collect()  # the page's clients go with the page
        for block, process in reversed(self._terminals):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)
            try:
                printed, _ = process.communicate(timeout=PATIENCE_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                raise
            assert process.returncode in (0, 130), f"{block} ended badly:\n{printed}"

    # ---- shell -----------------------------------------------------------------------------------------------------

    def _paste_shell(self, block: Block) -> None:
        text = block.text.replace(ADDRESS, self.bootstrap)
        if text.startswith(TERMINAL):
            self._open_terminal(block, text)
            return
        for line_by_line, part in _parts(text, self.pipeline is not None):
            if line_by_line and self.pipeline is not None:
                assert self.pipeline(part) == 0, f"{block}: {part}"
            else:
                ended = self._shell(part)
                assert ended.returncode == 0, f"{block} ended with {ended.returncode}:\n{ended.stdout}"
                assert "Traceback" not in ended.stdout, f"{block}:\n{ended.stdout}"

    def _shell(self, text: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "-euc", text],
            cwd=self.directory,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    def _environment(self) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return {**os.environ, "PATH": path, "HOME": str(self.directory), "OTTLA_BOOTSTRAP": self.bootstrap}

    def _open_terminal(self, block: Block, text: str) -> None:
        """Start what stays in the foreground of a terminal, and wait for its first line."""
        if serve := re.search(r"^ottla serve\b(?!.*--config)", text, re.MULTILINE):
            port = free_port()
            self.bootstrap = f"127.0.0.1:{port}"
            text = f"{text[: serve.end()]} --listen {self.bootstrap}{text[serve.end() :]}"
        first, _, stays = text.strip().rpartition("\n")
        process = subprocess.Popen(
            ["sh", "-euc", f"{first}\nexec {stays}"],
            cwd=self.directory,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            process_group=0,
        )
        self._terminals.append((block, process))
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], PATIENCE_S)
        assert ready, f"{block} says nothing when it begins"
        said = process.stdout.readline()
        assert process.poll() is None, f"{block} ended at once:\n{said}{process.stdout.read()}"

    # ---- Python ----------------------------------------------------------------------------------------------------

    def _paste_python(self, block: Block) -> None:
        text = block.text.replace(ADDRESS, self.bootstrap)
        text = text.replace('"./', f'"{self.directory}/')  # a JVM that is up already stands in another directory
        if re.search(r"^def test_", text, re.MULTILINE):
            (self.directory / "test_page.py").write_text(text)
            ended = self._shell("python -m pytest -q -p no:cacheprovider test_page.py")
            assert ended.returncode == 0, f"{block}:\n{ended.stdout}"
            return
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.chdir(self.directory):
            exec(compile("\n" * block.line + text, str(TOP / block.page), "exec"), self.names)
        said = re.findall(r"^# -> (.*)$", text, re.MULTILINE)
        assert not said or printed.getvalue().splitlines() == said, f"{block} printed {printed.getvalue()!r}"


def _parts(text: str, apart: bool) -> Iterator[tuple[bool, str]]:
    """(whether it is one `ottla pipeline` line, the text) in order; all in one part unless these stand `apart`."""
    rest: list[str] = []
    for line in text.splitlines():
        if apart and line.startswith("ottla pipeline "):
            if rest:
                yield False, "\n".join(rest)
                rest = []
            yield True, line
        else:
            rest.append(line)
    if rest:
        yield False, "\n".join(rest)
