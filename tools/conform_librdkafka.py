"""Run librdkafka's own test suite against a node, or against three.

    python -m tools.conform_librdkafka RUNNER [--nodes 3] [--tests 0098 0103] [--kafka DIR] [--bootstrap HOST:PORT]

RUNNER is the program `test-runner` of a built librdkafka, in its `tests` directory. Each test runs on its own, in that
directory, with a time limit; its output is kept in --logs. Tests that need no broker are left out unless they are
named. Some tests run Java programs of the suite or tools of Kafka: --kafka is an unpacked distribution of Kafka for
them; without it, librdkafka skips these parts. --bootstrap runs the tests against a broker that is already running,
for comparison.

Share consumer tests change a group's config and read at once. Other nodes learn of such a change some milliseconds
after it is acknowledged, as in Kafka, so on three nodes such a test (0172, seldom) can begin at the end of the topic.

Ends with 1 if a test fails that EXPECTED does not name, or if a node logged an error of its own.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ottla.testing import EmbeddedCluster
from tools.crash_cluster import errors_logged

SETTINGS = {
    "num.partitions": 4,
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "group.share.min.record.lock.duration.ms": 1000,
    "group.initial.rebalance.delay.ms": 3000,
}
"""What the suite configures when it starts Kafka itself, and a default of Kafka; each node also has its own rack."""
KAFKA_VERSION = "4.3.1"
SUMMARY = re.compile(
    r"^\|\S* (\w+) +\| +(PASSED|FAILED|SKIPPED|RUNNING|DID NOT RUN) \| +([\d.]+)s \S*\|(.*)$", re.MULTILINE
)
FAILURE = re.compile(r'^### Test "(\w+)([^"]*)" failed at .*###\n(.*)$', re.MULTILINE)
"""A test that fails leaves threads behind, for which the runner often aborts before it prints its summary."""
COLOURS = re.compile(r"\x1b\[\d*m")

NO_AUTHORIZER = "needs an authorizer; like a Kafka without one, CreateAcls answers SECURITY_DISABLED"
EXPECTED = dict.fromkeys(
    ("0081_admin", "0109_auto_create_topics", "0115_producer_auth", "0119_consumer_auth"), NO_AUTHORIZER
)
"""Tests that fail, by name, each with the reason."""
NEEDS_THREE = "replication factor of 3 cannot be reached because only 1 broker(s) are registered"
"""The error of tests that create topics with three replicas (0103), on one node."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runner", type=Path, help="the program test-runner")
    parser.add_argument("--nodes", type=int, choices=(1, 3), default=1)
    parser.add_argument("--tests", nargs="*", default=[], metavar="NUMBER", help="(default: all that need a broker)")
    parser.add_argument("--kafka", type=Path, help="an unpacked distribution of Kafka")
    parser.add_argument("--bootstrap", help="a broker that is already running")
    parser.add_argument("--timeout", type=float, default=900, metavar="SECONDS", help="for one test (default 900)")
    parser.add_argument("--logs", type=Path, default=Path("librdkafka-logs"), help="(default ./librdkafka-logs)")
    given = parser.parse_args()
    given.logs.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        errors: list[str] = []
        bootstrap = given.bootstrap or stack.enter_context(_nodes(given.nodes, errors))
        suite = Suite(given.runner.resolve(), bootstrap, given.kafka, given.logs.resolve())
        unexpected = 0
        for number in given.tests or suite.numbers():
            for line, is_fine in suite.run(number, given.timeout, local=bool(given.tests)):
                print(line, flush=True)
                unexpected += not is_fine
    for error in errors:
        print(error)
    return 1 if unexpected or errors else 0


@contextmanager
def _nodes(count: int, errors: list[str]) -> Iterator[str]:
    """Yields the bootstrap servers of so many nodes; `errors` gets what they logged."""
    with tempfile.TemporaryDirectory(prefix="ottla-librdkafka-") as directory:
        racks = {node: f"RACK{node}" for node in range(1, count + 1)}
        settings = SETTINGS | {"min.insync.replicas": (count + 1) // 2}
        with EmbeddedCluster(nodes=count, settings=settings, racks=racks, directory=directory) as cluster:
            yield cluster.bootstrap_servers
        errors += errors_logged(directory)


class Suite:
    """The built suite with the broker that it uses."""

    def __init__(self, runner: Path, bootstrap: str, kafka: Path | None, logs: Path) -> None:
        self._runner = runner
        self._logs = logs
        configuration = logs / "test.conf"
        configuration.write_text(
            f"metadata.broker.list={bootstrap}\nbroker.address.family=v4\ntest.timeout.multiplier=2\n"
        )
        self._environment = os.environ | {
            "RDKAFKA_TEST_CONF": str(configuration),
            "TEST_KAFKA_VERSION": KAFKA_VERSION,
            "BROKERS": bootstrap,
        }
        if kafka is not None:
            self._environment["KAFKA_PATH"] = str(kafka.resolve())

    def numbers(self) -> list[str]:
        """The numbers of all tests, without those that run only when named."""
        listing = self._call(["-L", "-p1"], {"TESTS": "none", "TEST_LEVEL": "3"}, self._logs / "list.log", 60)
        names = re.findall(r"Skipping test (\w+) \(not included in TESTS list\)", COLOURS.sub("", listing))
        return sorted({name.partition("_")[0] for name in names if name < "8000"})

    def run(self, number: str, timeout_s: float, *, local: bool) -> Iterator[tuple[str, bool]]:
        """Yields a line for each test of this number, and whether its result is fine."""
        begun = time.monotonic()
        log = self._logs / f"{number}.log"
        output = COLOURS.sub("", self._call(["-p1", *([] if local else ["-L"])], {"TESTS": number}, log, timeout_s))
        results = [found.groups() for found in SUMMARY.finditer(output) if found[1].startswith(number)]
        if not results:
            seconds = f"{time.monotonic() - begun:.1f}"
            failures = [found.groups() for found in FAILURE.finditer(output) if found[1].startswith(number)]
            results = [(name, "FAILED", seconds, f"{where} {reason}") for name, where, reason in failures]
            results = results or [(number, "UNFINISHED", seconds, "")]
        for name, result, seconds, reason in results:
            if "negative test flags" in reason:  # it needs no broker
                continue
            is_fine = result in {"PASSED", "SKIPPED"}
            if not is_fine and name in EXPECTED:
                reason, is_fine = f"expected: {EXPECTED[name]}", True
            elif not is_fine and NEEDS_THREE in reason:
                reason, is_fine = "expected: needs three nodes", True
            yield f"{name:45} {result:10} {float(seconds):7.1f} s  {reason.strip()}", is_fine

    def _call(self, options: list[str], environment: dict[str, str], log: Path, timeout_s: float) -> str:
        """The output of the runner; it is killed with all it started when the time is over."""
        with log.open("wb") as output:
            process = subprocess.Popen(
                [str(self._runner), *options],
                cwd=self._runner.parent,
                env=self._environment | environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return log.read_text(errors="replace")


if __name__ == "__main__":
    sys.exit(main())
