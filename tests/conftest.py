"""Options of the whole test suite."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="write transcripts anew instead of comparing with them")


@pytest.fixture(scope="session")
def update(request: pytest.FixtureRequest) -> bool:
    """Whether transcripts are to be written anew."""
    return bool(request.config.getoption("--update"))
