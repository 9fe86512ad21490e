"""Prints the results of commands: aligned columns under Kafka's names for people, JSON for programs.

Columns are plain text in a pipe and on a terminal alike, so that grep and awk see what a person reads.

Names of groups, clients and members may contain any characters, so every command prints through this module; the
exceptions are records themselves (tests/cli/test_output.py names them).
"""

import json
import re
import sys
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any

from ottla.escaping import UNSEEN, visible, visible_lines
from ottla.wording import counted as counted


class Format(StrEnum):
    """How a command prints its result."""

    TABLE = "table"
    JSON = "json"


class CommandError(Exception):
    """A command failed; the text is one plain sentence for the person who ran it."""

    code = 1


class UsageError(CommandError):
    """The arguments are invalid, whatever the state of the cluster: the exit code is that of an invalid option."""

    code = 2


def field(column: str) -> str:
    """The JSON field of a column: `CURRENT-OFFSET` is current_offset, `COORDINATOR (ID)` coordinator."""
    return re.sub(r"[^a-z]+", "_", column.split(" (")[0].lower()).strip("_")


class Size(int):
    """A number of bytes: 71.9GB in a table, 71947681792 in JSON."""

    def __str__(self) -> str:
        size = float(self)
        for unit in ("B", "KB", "MB", "GB", "TB"):
            if size < 999.95 or unit == "TB":
                break
            size /= 1000
        return f"{int(self)}B" if unit == "B" else f"{size:.1f}{unit}"


def sized(size: int | None) -> Size | None:
    """A number of bytes that may be unknown."""
    return None if size is None else Size(size)


def ended(sentence: object) -> str:
    """The sentence with one full stop, whether or not it had one."""
    text = str(sentence).rstrip()
    return text if text.endswith(("?", "!")) else text.rstrip(".") + "."


def ranges(numbers: Iterable[int]) -> str:
    """Numbers as ranges: "0-5,8"."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


def print_rows(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], format: Format, *, none: str = "Nothing to show."
) -> None:
    """Print rows as a table, None as "-", or as a JSON list of objects. Without rows it prints no table, but `none` on
    standard error."""
    if format is Format.JSON:
        print_json([dict(zip(map(field, columns), row, strict=True)) for row in rows])
        return
    texts = [[text_of(cell) for cell in row] for row in rows]
    if not texts:
        say(none, err=True)
        return
    widths = [max(map(len, cells)) for cells in zip(columns, *texts, strict=True)]
    for cells in (columns, *texts):
        line = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        print(line.rstrip())


def text_of(cell: Any) -> str:
    if cell is None or cell == "":
        return "-"
    return str(cell).lower() if isinstance(cell, bool) else visible(str(cell))


def print_json(value: Any) -> None:
    print(json_text(value, indent=2))


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON with readable characters, except control characters, which are escaped."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return UNSEEN.sub(lambda found: "\n" if found[0] == "\n" else f"\\u{ord(found[0]):04x}", text)


def say(sentence: str, *, err: bool = False) -> None:
    """Print one line, on standard error with `err`; names in it are escaped."""
    print(visible(sentence), file=sys.stderr if err else sys.stdout, flush=err)


def say_lines(text: object, *, err: bool = False) -> None:
    """Print a text of several lines."""
    print(visible_lines(str(text)), file=sys.stderr if err else sys.stdout, flush=err)


def print_done(sentence: str, format: Format, **fields: Any) -> None:
    """Report what was done: a sentence for people, its parts for programs."""
    if format is Format.JSON:
        print_json(fields)
    else:
        say(sentence)
