"""`ottla doctor`: what it prints, its exit codes, and bundles."""

import json
import re
import shlex
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.cli import doctor as command
from ottla.cli.main import main
from ottla.demo.stuck import COUNT, stick
from ottla.doctor.snapshot import Evidence, Partition, Snapshot, Topic
from ottla.testing import EmbeddedBroker

ONCE = ("doctor", "--window", "0")


@pytest.fixture(scope="module")
def broken() -> Evidence:
    """A partition without a leader, and twelve topics with a note."""
    lost = Topic("orders", (Partition(0, -1, (1,), (1,)),))
    risky = {"unclean.leader.election.enable": "true"}
    notes = [Topic(f"t{number}", (Partition(0, 1, (1,), (1,)),), configs=risky) for number in range(12)]
    once = Snapshot(1_700_000_000_000, "c", topics=(lost, *notes), unseen=("disks of node 1: refused",))
    return Evidence(once, once)


@pytest.fixture
def bundle(broken: Evidence, tmp_path: Path) -> str:
    from ottla.doctor.bundle import to_json

    path = tmp_path / "bundle.json"
    path.write_text(json.dumps(to_json(broken)))
    return str(path)


def ended(printed: Callable[[], tuple[str, str]], *arguments: str) -> tuple[int, str, str]:
    printed()
    return main(["doctor", *arguments]), *printed()


def test_a_healthy_node(tmp_path: Path, printed: Callable[[], tuple[str, str]]) -> None:
    with EmbeddedBroker() as broker:
        path = tmp_path / "bundle.json"
        where = ("--window", "0", "-b", broker.bootstrap_servers)
        code, out, err = ended(printed, *where, "--bundle", str(path), "--only", "disk-fills", "--only", "stuck")
        assert (code, out) == (0, "")
        assert err == "Examined 1 node, 0 topics, 0 groups, over 0 s: 0 findings.\n"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert ended(printed, "--from", str(path), "--only", "stuck")[0] == 0


def test_the_commands_for_a_share_group_that_has_paused_itself_mend_it(printed: Callable[[], tuple[str, str]]) -> None:
    with EmbeddedBroker() as broker:
        where = ("-b", broker.bootstrap_servers)

        def advice() -> list[str]:
            _, out, _ = ended(printed, *where, "--window", "0", "--format", "json", "--only", "share-group-idle")
            return [each["advice"] for each in json.loads(out)["findings"]]

        jobs = stick(broker.bootstrap_servers)
        try:
            (text,) = advice()
            commands = re.findall("`ottla ([^`]*)`", text)
            assert [each.split()[1] for each in commands] == ["redrive", "resume", "redrive"]
            for each in commands:
                assert main([*shlex.split(each), *where]) == 0
            assert jobs.work(60, lambda: len(jobs.done) == COUNT), "each mail was sent, also those that had failed"
            assert advice() == []
        finally:
            jobs.stop()


def test_the_worst_ten_findings_their_advice_and_what_was_not_seen(
    bundle: str, printed: Callable[[], tuple[str, str]]
) -> None:
    code, out, err = ended(printed, "--from", bundle)
    assert code == 2
    lines = out.splitlines()
    assert lines[0] == "DATA AT RISK  orders-0 has no leader: no client can read or write it."
    assert lines[1].endswith("-> start node 1; `ottla cluster describe` shows what is missing  [offline-partition]")
    assert lines[-1] == "3 more findings: --all shows them."
    assert len(lines) == 21
    assert "Not seen: disks of node 1: refused\n" in err
    assert len(ended(printed, "--from", bundle, "--all")[1].splitlines()) == 26


def test_json_and_only(bundle: str, printed: Callable[[], tuple[str, str]]) -> None:
    code, out, _ = ended(printed, "--from", bundle, "--format", "json", "--only", "unclean-election")
    found = json.loads(out)
    assert code == 0
    assert len(found["findings"]) == 12
    assert found["findings"][0] == {
        "check": "unclean-election",
        "severity": "note",
        "subject": "t0",
        "sentence": "t0 may elect a replica that is not in sync: then acknowledged records are lost.",
        "advice": "ottla topics alter t0 --set unclean.leader.election.enable=false",
        "sure_with": None,
    }
    assert found["unseen"] == ["disks of node 1: refused"]


def test_the_list_of_checks(ottla: Callable[..., Any]) -> None:
    assert ["stuck", "members", "that", "do", "not", "move", "although", "records", "wait"] in ottla(
        "doctor", "--list-checks"
    ).rows()


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--only", "nothing"), 2, "There is no check nothing"),
        (("--watch", "--format", "json"), 2, "--watch cannot be combined"),
        (("--from", "/nowhere"), 1, "/nowhere cannot be read"),
        (("--from", __file__), 1, "is no bundle"),
        (("--window", "-1"), 2, "--window"),
        (("--window", "0", "-b", "127.0.0.1:1"), 1, "No broker can be reached"),
    ],
)
def test_bad_input(ottla: Callable[..., Any], arguments: tuple[str, ...], code: int, says: str) -> None:
    assert says in ottla("doctor", *arguments, code=code).err


def test_watching_prints_what_begins_and_what_is_over(
    broken: Evidence, monkeypatch: pytest.MonkeyPatch, printed: Callable[[], tuple[str, str]]
) -> None:
    healthy = Evidence(Snapshot(0), Snapshot(0))
    monkeypatch.setattr(command, "_evidence", lambda *_: iter((healthy, broken, broken, healthy)))
    code, out, _ = ended(printed, "--watch", "--only", "offline-partition")
    assert code == 0
    begins, over = out.splitlines()
    assert begins[9:].startswith("DATA AT RISK orders-0 has no leader")
    assert over[9:] == "over: offline-partition, orders"
