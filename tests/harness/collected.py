"""Collects the tests of a whole run in the nursery, for its forks (tests/harness/worker.py) to run.

A worker of pytest-xdist collects by itself, which takes seconds of CPU in each process.
"""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass, field

import hypothesis
import pytest
from _pytest.config import _prepareconfig


@dataclass(eq=False)
class Collection:
    """A session with every test; the plugin that keeps what workers report of its collection."""

    config: pytest.Config
    session: pytest.Session
    refused: list[pytest.CollectReport] = field(default_factory=list)
    """The reports of files that failed, or are skipped as a whole."""

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed:
            self.refused.append(report)

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Name the tests as pytest-xdist does, by their groups."""
        from xdist.remote import WorkerInteractor

        WorkerInteractor.pytest_collection_modifyitems(self, config, items)  # type: ignore[arg-type]  # it uses no self


COLLECTED: Collection | None = None
"""The nursery's, if nothing failed."""


def collect(arguments: list[str]) -> None:
    """Collect as a worker of a run with these arguments does. It prints nothing, captures nothing yet, and drops the
    warnings of what the tests import."""
    global COLLECTED
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(Exception):
        config = _prepareconfig([*arguments, "--capture=no"], None)
        from xdist.remote import setup_config  # a plugin is not imported before pytest does

        setup_config(config, None)
        session = pytest.Session.from_config(config)
        found = Collection(config, session)
        config.pluginmanager.register(found)
        config._do_configure()
        config.hook.pytest_sessionstart(session=session)
        config.hook.pytest_collection(session=session)
        config.pluginmanager.unregister(found)
        if not any(report.failed for report in found.refused):
            COLLECTED = found


def warm_up() -> None:
    """Let hypothesis read and make its tables, as its first example in a process does."""
    hypothesis.find(hypothesis.strategies.text(), lambda text: True)
