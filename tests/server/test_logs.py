"""The two formats of a log line."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from ottla.server import logs


@pytest.fixture(autouse=True)
def root_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level, raising = list(root.handlers), root.level, logging.raiseExceptions
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.raiseExceptions = raising


def test_json_lines_hold_everything() -> None:
    stream = io.StringIO()
    logs.configure("json", stream)
    logger = logging.getLogger("ottla.test")
    logger.info("%s is\nhere", "ünï", extra={"partition": 3})
    try:
        raise ValueError("why")
    except ValueError:
        logger.exception("it failed")
    first, second = (json.loads(line) for line in stream.getvalue().splitlines())
    assert (first["level"], first["logger"], first["message"]) == ("info", "ottla.test", "ünï is\nhere")
    assert first["partition"] == 3
    assert first["time"].endswith("Z")
    assert "ValueError: why" in second["error"]


def test_text_lines_are_for_people() -> None:
    stream = io.StringIO()
    logs.configure("text", stream)
    logging.getLogger("ottla.test").info("plain")
    logging.getLogger("ottla.test").warning("loud")
    plain, loud = stream.getvalue().splitlines()
    assert plain.endswith(" test: plain")
    assert loud.endswith(" test: WARNING: loud")


FORGED = "g\n2026-01-01T00:00:00.000Z server: all is well\r\x1b[2K\u2028\u202e\x85\udc80"


@pytest.mark.parametrize("shape", ["text", "json"])
def test_no_name_that_a_client_gives_itself_forges_a_line(shape: logs.Shape) -> None:
    stream = io.StringIO()
    logs.configure(shape, stream)
    logger = logging.getLogger("ottla.test")
    logger.info("group %s is empty", FORGED)
    try:
        raise ValueError(FORGED)
    except ValueError:
        logger.exception("group %s failed", FORGED)
    lines = stream.getvalue().removesuffix("\n").split("\n")
    assert len([line for line in lines if not line.startswith(" ")]) == 2
    for line in lines:
        assert line.isprintable(), line
        line.encode()
    if shape == "json":
        assert [json.loads(line)["message"] for line in lines] == [f"group {FORGED} is empty", f"group {FORGED} failed"]
    else:
        assert lines[0].endswith(r"well\r\x1b[2K\u2028\u202e\x85\udc80 is empty")
