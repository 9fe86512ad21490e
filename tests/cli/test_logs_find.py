"""`ottla pipeline logs find` in a table that is there: what it says of what it was asked for."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from ottla.cli.main import main
from ottla.spark.logs.batches import Tables


@pytest.fixture
def table(tmp_path: Path) -> str:
    """Lines of two services, each in a file of its own."""
    lines = Tables.make(str(tmp_path)).lines
    for service in ("web", "api"):
        row = {"service": service, "raw": f"a line of {service}", "timestamp": datetime(2026, 1, 31, tzinfo=UTC)}
        lines.add_rows(pa.Table.from_pylist([row], schema=lines.arrow), ends={})
    return str(tmp_path)


def find(printed: Callable[[], tuple[str, str]], *arguments: str) -> tuple[str, str]:
    printed()
    assert main(["pipeline", "logs", "find", *arguments]) == 0
    return printed()


def test_a_service_without_lines_is_named(table: str, printed: Callable[[], tuple[str, str]]) -> None:
    out, err = find(printed, "line", "--table", table, "-s", "nosuch", "-s", "weg")
    assert out == ""
    assert "No line here is of nosuch or weg; there are lines of api, web.\n" in err


@pytest.mark.parametrize("asked", [("nosuch",), ("line", "-s", "web"), ("nosuch", "-s", "web")])
def test_nothing_is_said_of_services_that_have_lines(
    table: str, printed: Callable[[], tuple[str, str]], asked: tuple[str, ...]
) -> None:
    assert "No line here" not in find(printed, *asked, "--table", table)[1]
