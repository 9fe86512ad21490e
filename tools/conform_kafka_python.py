"""Run kafka-python's own integration suite against an Ottla node.

    python -m tools.conform_kafka_python [--node HOST:PORT] [--update] [-k EXPRESSION]

The suite comes with the source distribution of the installed kafka-python version, fetched once through pip into the
user's cache. What passes stands in tests/conform/kafka_python_passes.txt (--update writes it anew). Ends with 1 when
a test listed there does not pass any more, or one fails that NOT_SERVED does not explain.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PASSES = ROOT / "tests" / "conform" / "kafka_python_passes.txt"
KAFKA_VERSION = "4.3"
SETTINGS = {"num.partitions": "4", "node.id": "0", "group.min.session.timeout.ms": "1000"}
"""As the broker that the suite would start itself is configured."""

NOT_SERVED = {
    "test_create_describe_delete_acls": "needs a broker with an authorizer",
    "test_elect_leaders": "one node has no leaders to elect (SKIPPED.md: ElectLeaders)",
    "test_alter_replica_log_dirs": "one log directory a node (SKIPPED.md: AlterReplicaLogDirs)",
    "test_describe_metadata_quorum": "there is no KRaft quorum (SKIPPED.md: DescribeQuorum)",
    "test_alter_partition_reassignments": "one node has nothing to reassign (SKIPPED.md: AlterPartitionReassignments)",
    "test_list_partition_reassignments": "one node has nothing to reassign (SKIPPED.md: ListPartitionReassignments)",
    "test_ssl_handshake": "wants to start a broker of its own, with TLS",
    "test_legacy_kafka_client_ssl": "wants to start a broker of its own, with TLS",
    "test_transactional_producer_messages": "transactions are not served yet (SKIPPED.md)",
    "test_transactional_producer_offsets": "transactions are not served yet (SKIPPED.md)",
}


SERVICE = """class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def open(self):
        pass

    def close(self):
        pass

    stop = close


class SpawnedService:
    def __init__(self, *arguments):
        raise RuntimeError("the broker runs already")
"""
"""A module of the suite that its source distribution lacks; a running broker needs no more of it than this."""


def suite() -> Path:
    """The unpacked source of the installed kafka-python."""
    wanted = version("kafka-python")
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "ottla" / "kafka-python"
    source = cache / f"kafka_python-{wanted}"
    if not (source / "test" / "integration").is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        print(f"fetching the source of kafka-python {wanted}", file=sys.stderr)
        pip = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--no-binary",
            ":all:",
            "--dest",
            str(cache),
        ]
        subprocess.run([*pip, f"kafka-python=={wanted}"], check=True)
        subprocess.run(["tar", "-xzf", cache / f"kafka_python-{wanted}.tar.gz", "-C", cache], check=True)
        (source / "test" / "__init__.py").touch()  # else Python's own package `test` wins
        (source / "test" / "service.py").write_text(SERVICE)
    return source


@contextlib.contextmanager
def node(given: str | None) -> Iterator[str]:
    if given:
        yield given
        return
    from ottla.testing import EmbeddedBroker

    with EmbeddedBroker(settings=SETTINGS) as broker:
        yield broker.bootstrap_servers


def run(source: Path, bootstrap: str, expression: str | None) -> dict[str, str]:
    """Test name to "passed", "failed" or "skipped"."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        command = [sys.executable, "-m", "pytest", "test/integration", f"--junitxml={report}", "-o", "addopts="]
        command += ["--timeout=120", "-q", "--tb=short", "-p", "no:cacheprovider", "-o", "log_level=WARNING"]
        if expression:
            command += ["-k", expression]
        environment = {**os.environ, "KAFKA_URI": f"kafka://{bootstrap}", "KAFKA_VERSION": KAFKA_VERSION}
        environment |= {"PYTHONPATH": str(source), "KAFKA_ROOT": directory}  # the suite wants a Kafka to be there
        subprocess.run(command, cwd=source, env=environment, check=False)
        return {case.attrib["name"]: outcome(case) for case in ET.parse(report).iter("testcase")}


def outcome(case: ET.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    return "skipped" if case.find("skipped") is not None else "passed"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--node", help="address of a running node; one is started without it")
    parser.add_argument("--update", action="store_true", help="write the list of what passes anew")
    parser.add_argument("-k", dest="expression", help="only these tests, as pytest's -k")
    arguments = parser.parse_args()
    with node(arguments.node) as bootstrap:
        outcomes = run(suite(), bootstrap, arguments.expression)
    passed = sorted(name for name, how in outcomes.items() if how == "passed")
    failed = sorted(name for name, how in outcomes.items() if how == "failed")
    if arguments.update:
        PASSES.write_text("".join(f"{name}\n" for name in passed))
    listed = PASSES.read_text().split("\n") if PASSES.exists() else []
    lost = [
        name for name in listed if name and outcomes.get(name, "passed" if arguments.expression else "") != "passed"
    ]
    unexplained = [name for name in failed if name not in NOT_SERVED]
    for name in failed:
        print(f"fails: {name}: {NOT_SERVED.get(name, 'NOT EXPLAINED')}")
    for name in lost:
        print(f"passed before: {name}")
    skipped = sum(how == "skipped" for how in outcomes.values())
    print(
        f"{len(passed)} passed, {len(failed)} failed ({len(unexplained)} unexplained), {skipped} skipped by the suite"
    )
    return 1 if lost or unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
