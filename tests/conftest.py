"""Options of the whole test suite, and what a test may read of its own output."""

from collections.abc import Callable

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="write transcripts anew instead of comparing with them")


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
