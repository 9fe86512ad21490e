"""Runs tests for pytest-xdist in a fork of the nursery, which has collected them already.

It replaces `xdist.remote`, and reports less: of each test that passes, one report instead of three.
If the collection failed, the worker runs `xdist.remote`, which reports why.
"""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from xdist import remote

from tests.harness.collected import COLLECTED


class Interactor(remote.WorkerInteractor):
    """Leaves out what no one reads: that a test begins, and that its fixtures were made and unmade. These are three of
    the six messages of a test that takes a millisecond."""

    def __init__(self, config: pytest.Config, channel: Any) -> None:
        super().__init__(config, channel)
        self.reports_all = bool(config.option.verbose or config.option.durations or config.option.xmlpath)

    @pytest.hookimpl
    def pytest_runtest_logstart(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        if self.reports_all:
            super().pytest_runtest_logstart(nodeid, location)

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self.reports_all or report.when == "call" or not report.passed:
            super().pytest_runtest_logreport(report)


def work(channel: Any) -> None:
    """Run the tests that arrive on this channel."""
    if COLLECTED is None:
        exec(inspect.getsource(remote), {"channel": channel, "__name__": "__channelexec__"})
        return
    config, session = COLLECTED.config, COLLECTED.session
    config.workerinput, _, options, _ = channel.receive()  # type: ignore[attr-defined]
    config.workeroutput = {}  # type: ignore[attr-defined]
    prepare(config, options["basetemp"])
    interactor = Interactor(config, channel)
    interactor.pytest_sessionstart(session)
    for report in COLLECTED.refused:
        interactor.pytest_collectreport(report)
    interactor.pytest_collection_finish(session)
    status = pytest.ExitCode.INTERNAL_ERROR
    try:
        interactor.pytest_runtestloop(session)
        status = pytest.ExitCode.TESTS_FAILED if session.testsfailed else pytest.ExitCode.OK
    except KeyboardInterrupt:
        status = pytest.ExitCode.INTERRUPTED
    finally:
        session.exitstatus = status
        config.hook.pytest_sessionfinish(session=session, exitstatus=status)
        config._ensure_unconfigure()


def prepare(config: pytest.Config, directory: str) -> None:
    """Do what pytest does before a collection, as far as it differs between workers."""
    given: dict[str, Any] = config.workerinput  # type: ignore[attr-defined]
    os.environ["PYTEST_XDIST_TESTRUNUID"] = given["testrunuid"]
    os.environ["PYTEST_XDIST_WORKER"] = given["workerid"]
    os.environ["PYTEST_XDIST_WORKER_COUNT"] = str(given["workercount"])
    config._tmp_path_factory._given_basetemp = Path(directory)  # type: ignore[attr-defined]
    capture = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()
    capture._method = "fd"
    capture.start_global_capturing()
    capture.suspend_global_capture()
    config.hook.pytest_warning_recorded._call_history.clear()  # those of imports, which a new plugin would be told
    # What it would print goes nowhere. A failed assertion and a timeout ask it for its writer.
    reporter = config.pluginmanager.unregister(name="terminalreporter")
    config.pluginmanager.register(SimpleNamespace(_tw=reporter._tw), "terminalreporter")
