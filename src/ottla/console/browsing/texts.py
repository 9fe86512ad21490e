"""Shows the bytes of keys, values and headers as text: JSON, UTF-8 or hex; decoded by a schema, as JSON."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final

from ottla.escaping import UNSEEN
from ottla.schemas.decoder import Decoded

_TOKENS: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[][{},:]|[^][{},:"\s]+')
"""The tokens of JSON."""
AUTO, JSON, TEXT, HEX = "auto", "json", "text", "hex"
FORMATS: Final = (AUTO, JSON, TEXT, HEX)
JSON_BYTES_MAX: Final = 1 << 20
"""A longer value is shown as text, and a search by a path does not read it."""


@dataclass(frozen=True, slots=True)
class Shown:
    """Bytes as text. `text` is None for null; `size` counts all bytes, also where `is_cut`. `schema` is the one with
    which they were written, "" without one, and `undecoded` the reason why it did not decode them."""

    text: str | None
    format: str
    size: int
    is_cut: bool = False
    schema: str = ""
    undecoded: str = ""


def shown(
    data: bytes | None, format: str, chars_max: int, *, indent: bool = False, decoded: Decoded | None = None
) -> Shown:
    """The first characters of the bytes in a format; `auto` chooses the first that fits."""
    if data is None:
        return Shown(None, "null", 0)
    schema = undecoded = ""
    if decoded is not None and format in (AUTO, JSON):
        schema, undecoded = decoded.schema, decoded.why
    if schema and decoded is not None and decoded.json is not None:
        chosen, text = JSON, decoded.json.decode("utf-8", "replace")
        if indent:
            text = indented(text)
    else:
        chosen, text = _formatted(data, HEX if undecoded else format, chars_max, indent)
    return Shown(text[:chars_max], chosen, len(data), len(text) > chars_max, schema, undecoded)


def _formatted(data: bytes, format: str, chars_max: int, indent: bool) -> tuple[str, str]:
    if format in (AUTO, JSON) and len(data) <= JSON_BYTES_MAX and data.lstrip()[:1] in (b"{", b"["):
        try:
            json.loads(data)
            if not indent:
                return JSON, data[: 4 * chars_max + 4].decode("utf-8", "replace")
            return JSON, indented(data.decode(json.detect_encoding(data)))
        except (ValueError, RecursionError):
            pass
    if format == HEX or (format == AUTO and not is_text(data)):
        return HEX, data[: chars_max // 2 + 1].hex(" ")
    return TEXT, data[: 4 * chars_max + 4].decode("utf-8", "replace")


def indented(text: str) -> str:
    """JSON with a line for each member. Numbers are as they were written: 1e999 would become Infinity, and 1.10 1.1.
    Escaped characters of texts are shown as themselves."""
    lines, depth, before = [""], 0, ""
    for token in _TOKENS.findall(text):
        if token in "}]":
            depth -= 1
            if before not in ("{", "["):
                lines.append("  " * depth)
        elif before in ("{", "[", ","):
            lines.append("  " * depth)
        if token[0] == '"' and "\\" in token:
            token = json.dumps(json.loads(token, strict=False), ensure_ascii=False)
        lines[-1] += f"{token} " if token == ":" else token
        depth += token in ("{", "[")
        before = token
    return "\n".join(lines)


def is_text(data: bytes) -> bool:
    """Whether the bytes look like text: UTF-8 with few control characters, by their beginning."""
    start = data[:1024]
    try:
        text = start.decode()
    except UnicodeDecodeError as wrong:
        if len(data) <= len(start) or wrong.start < len(start) - 3:
            return False
        text = start[: wrong.start].decode()
    odd = sum(len(each) for each in UNSEEN.findall(text) if each not in "\t\n\r")
    return odd * 20 <= len(text)
