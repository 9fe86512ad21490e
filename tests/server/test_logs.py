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
