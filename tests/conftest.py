"""Options of the whole test suite, how it is spread over processes, and what a test may read of its own output."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""What Java is told in tests: code that runs for seconds is not worth compiling twice. Halves the CPU of a JVM."""


def pytest_configure() -> None:
    os.environ.setdefault("JAVA_TOOL_OPTIONS", QUICK_JAVA)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="write transcripts anew instead of comparing with them")


SLOW_FIRST = ("spark", "demo", "fuzz", "kmq", "crash", "ship", "sim", "conform", "bench", "docs")
"""Directories whose tests take long, the longest first: begun early, they end with the others."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spread the tests: those with a Spark session go to one process, those that share a fixture of their file stay
    together, every other one goes wherever there is room."""
    top = Path(__file__).parent
    for item in items:
        assert isinstance(item, pytest.Function)
        if "spark" in item.fixturenames:
            item.add_marker(pytest.mark.xdist_group("spark"))
        elif any(used[-1].scope == "module" for used in item._fixtureinfo.name2fixturedefs.values()):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))

    def rank(item: pytest.Item) -> tuple[bool, int]:
        room = item.path.relative_to(top).parts[0]
        place = SLOW_FIRST.index(room) if room in SLOW_FIRST else len(SLOW_FIRST)
        return item.get_closest_marker("xdist_group") is None or place != 0, place

    items.sort(key=rank)


@pytest.fixture(scope="session")
def update(request: pytest.FixtureRequest) -> bool:
    """Whether transcripts are to be written anew."""
    return bool(request.config.getoption("--update"))


@pytest.fixture
def printed(capfd: pytest.CaptureFixture[str]) -> Callable[[], tuple[str, str]]:
    """What went to file descriptors 1 and 2 since it was last asked, without what librdkafka logged.

    A client that an earlier test left to the garbage collector logs that its broker has gone,
    in its own thread, in the middle of whichever test runs then.
    """

    def read() -> tuple[str, str]:
        out, err = capfd.readouterr()
        return out, "".join(line for line in err.splitlines(keepends=True) if not line.startswith("%"))

    return read
