"""Reads properties files, such as Kafka's server.properties and client.properties: key=value lines.

Empty lines and lines that begin with # or ! are comments; a backslash at the end continues a line. This covers what
such files contain in practice; other escapes of Java's format are taken literally.
"""

from __future__ import annotations

from ottla.cli.output import CommandError


class BadPropertiesError(CommandError):
    """The file is invalid; the text is one sentence about it."""


def read_properties(path: str) -> dict[str, str]:
    """The file's keys and values, the last one of a repeated key. Raises BadPropertiesError."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        raise BadPropertiesError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise BadPropertiesError(f"{path} is not a text file.") from None
    found: dict[str, str] = {}
    for number, line in joined(text):
        key, equals, value = line.partition("=")
        if not equals or not key.strip():
            raise BadPropertiesError(f"{path}, line {number}: expected key=value, not {line!r}.")
        found[key.strip()] = value.strip()
    return found


def joined(text: str) -> list[tuple[int, str]]:
    """(number, line) of all lines except comments, with continued lines joined."""
    lines: list[tuple[int, str]] = []
    pending = ""
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not pending and (not line or line[0] in "#!"):
            continue
        if line.endswith("\\"):
            pending += line[:-1]
            continue
        lines.append((number, pending + line))
        pending = ""
    if pending:
        lines.append((len(text.splitlines()), pending))
    return lines
