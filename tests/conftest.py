"""Options of the whole test suite, how it is spread over processes, and what a test may read of its own output."""

import gc
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.harness import java_archive
from tests.harness.cpu_budget import TABLE, CpuBudgets, read_table
from tests.harness.nursery import Nursery
from tests.harness.running_order import places
from tests.harness.zookeepers import ZooKeepers

ON_ZOOKEEPER = pytest.mark.xdist_group("zookeeper")
"""For a test that asks for the fixture only when it runs."""


def pytest_configure(config: pytest.Config) -> None:
    os.environ.setdefault("JAVA_TOOL_OPTIONS", java_archive.options())
    config.pluginmanager.register(CpuBudgets(config))
    hypothesis.settings.register_profile(
        "same", derandomize=True, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )  # a change fails by its own fault only, not by a busy machine's
    hypothesis.settings.load_profile("default" if config.getoption("explore") else "same")


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """A short name for what is long: each name is sent around and printed, and one was of 28 MB."""
    return f"{argname}-of-{len(val)}" if isinstance(val, str | bytes | bytearray) and len(val) > ID_MAX else None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="write transcripts anew instead of comparing with them")
    parser.addoption("--explore", action="store_true", help="let hypothesis try other examples than last time")
    parser.addoption(
        "--cpu-budgets",
        choices=("report", "fail", "write", "files", "tests"),
        default="report",
        help="report test files that use more CPU than recorded, fail if there are any, record the use of this run, "
        "or show what uses most: the files, or the tests",
    )


NURSERY: pytest.StashKey[Nursery] = pytest.StashKey()
ID_MAX = 60
SLOW_S = 900
"""How long a slow test may take, or one that may start Spark; the others have the `timeout` of pyproject.toml."""
MANY, AT_ONCE = 100, 50
"""Where a file has so many tests, so many of them are handed to a process at once."""


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[object]:
    """Keep the garbage collector from looking at thousands of tests, which stay: while they are collected and ever
    after. It took a fifth of the CPU of small ones."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    if config.getvalue("dist") != "loadgroup":
        return None
    from tests.harness.scheduling import Scheduling  # pytest-xdist may be missing

    return Scheduling(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    """Fork the workers of a whole run from a process that has collected all tests."""
    if [Path(config.rootpath, arg) for arg in config.args] == [Path(__file__).parent]:
        nursery = config.stash[NURSERY] = Nursery([str(each) for each in config.invocation_params.args])
        config.pluginmanager.register(nursery)
        for spec in specs:
            spec.python = nursery.command


def pytest_unconfigure(config: pytest.Config) -> None:
    nursery = config.stash.get(NURSERY, None)
    if nursery is not None:
        nursery.close()


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Spread the tests: those with a Spark session go to one process or two, those with the ZooKeeper to one, those
    that share a fixture of their file stay together, every other one goes wherever there is room: to ask for each of
    the thousands of small ones would cost more than they do, so those of a file go some at a time."""
    of_file = Counter(item.path for item in items)
    placed: Counter[Path] = Counter()
    for item in items:
        assert isinstance(item, pytest.Function)
        name = f"{item.path.parent.name}-{item.path.stem}"
        if item.get_closest_marker("slow") is not None or "spark" in item.fixturenames:
            item.add_marker(pytest.mark.timeout(SLOW_S))
        if item.get_closest_marker("xdist_group") is not None:
            continue  # the browser's are in one process, whatever else they share
        if "spark" in item.fixturenames:
            item.add_marker(pytest.mark.xdist_group(spark_session_of(item)))
        elif "zookeeper" in item.fixturenames:
            item.add_marker(ON_ZOOKEEPER)
        elif any(used[-1].scope == "module" for used in item._fixtureinfo.name2fixturedefs.values()):
            item.add_marker(pytest.mark.xdist_group(name))
        elif of_file[item.path] > MANY:
            item.add_marker(pytest.mark.xdist_group(f"{name}-{placed[item.path] // AT_ONCE}"))
            placed[item.path] += 1
    yield
    if getattr(config.option, "loadgroup", False):
        begin_both_kinds(items)
        apart = [item.nodeid for item in items if item.get_closest_marker("xdist_group") and "@" not in item.nodeid]
        assert not apart, f"this pytest-xdist does not group tests with this pytest: {apart[0]}"


def spark_session_of(test: pytest.Item) -> str:
    """The group of a test that needs a Spark session. ./test has one session. All tests in one would be busy
    until after all others have ended; a third one would cost more than it gains."""
    return "spark" if test.get_closest_marker("slow") is None else "spark-slow"


def begin_both_kinds(items: list[pytest.Item]) -> None:
    """Sort tests as tests/harness/running_order.py says."""
    top = Path(__file__).parents[1]
    marks = [item.get_closest_marker("xdist_group") for item in items]
    tests = [
        (item.path.relative_to(top).as_posix(), None if mark is None else str(mark.args[0]))
        for item, mark in zip(items, marks, strict=True)
    ]
    found = places(tests, read_table(TABLE.read_text()))
    items[:] = [items[index] for index in sorted(range(len(items)), key=found.__getitem__)]


@pytest.fixture(scope="session")
def update(request: pytest.FixtureRequest) -> bool:
    """Whether transcripts are to be written anew."""
    return bool(request.config.getoption("--update"))


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[ZooKeepers]:
    """One server for the whole run, as a JVM takes seconds to start; each test has a path of its own in it."""
    with ZooKeepers() as servers:
        yield servers


LIBRDKAFKA = re.compile(r"%\d\|\d+\.\d+\|[A-Z]+\|rdkafka#.*\n?")
"""One message of its log, which may begin in the middle of a line that somebody else has not ended yet."""


@pytest.fixture
def printed(capfd: pytest.CaptureFixture[str]) -> Callable[[], tuple[str, str]]:
    """What went to file descriptors 1 and 2 since it was last asked, without what librdkafka logged.

    A client that an earlier test left to the garbage collector logs that its broker has gone,
    in its own thread, in the middle of whichever test runs then.
    """

    def read() -> tuple[str, str]:
        out, err = capfd.readouterr()
        return out, LIBRDKAFKA.sub("", err)

    return read
