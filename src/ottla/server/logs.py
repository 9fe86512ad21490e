"""Writes logs to standard error: a text line for people, or one JSON object a line for programs.

JSON lines hold `time` (UTC, ISO 8601, milliseconds), `level`, `logger`, `message`, `error` with the traceback if there
is one, and all fields given as `extra`.

In both formats, no client name can forge an entry. In the text format only a traceback has further lines, and those are
indented.
"""

from __future__ import annotations

import json
import logging
import sys
from textwrap import indent
from typing import Literal, TextIO

from ottla.escaping import UNSEEN, visible, visible_lines

Shape = Literal["text", "json"]

_KNOWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        for name, value in vars(record).items():
            if name not in _KNOWN:
                line[name] = value
        text = json.dumps(line, ensure_ascii=False, default=str)
        return UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)  # json escapes only some of these


class TextLines(logging.Formatter):
    """A line that begins with the time and, above INFO, the level."""

    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def format(self, record: logging.LogRecord) -> str:
        level = f"{record.levelname}: " if record.levelno > logging.INFO else ""
        line = f"{self.formatTime(record)} {record.name.removeprefix('ottla.')}: {level}{visible(record.getMessage())}"
        if record.exc_info:
            line += "\n" + indent(visible_lines(self.formatException(record.exc_info)), "  ")
        return line


def configure(shape: Shape, stream: TextIO | None = None) -> None:
    """Send everything at INFO and above to `stream` (standard error), once per process."""
    import time

    formatter = JsonLines() if shape == "json" else TextLines()
    formatter.converter = time.gmtime
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.raiseExceptions = False
