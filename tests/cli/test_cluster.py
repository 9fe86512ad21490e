"""`ottla cluster`: three nodes from one command, a dead one that is started again, and a stop in order."""

import io
import json
import math
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from ottla.cli.cluster import Interrupted, planned, processes, stop_node, tend
from ottla.cli.cluster.plan import Plan, checked
from ottla.cli.main import main
from ottla.cli.output import CommandError, UsageError
from tests.harness.waiting import soon
from tools.node_process import held_ports


def ottla(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command: in this process, unless it starts nodes."""
    if words[:2] in (("cluster", "start"), ("cluster", "start-node")):
        return subprocess.run([sys.executable, "-m", "ottla", *words], capture_output=True, text=True, timeout=120)
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = main([*words])
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


@pytest.fixture
def place(tmp_path: Path) -> Iterator[tuple[str, int]]:
    """A directory and a port for a cluster, which is stopped afterwards."""
    directory = str(tmp_path / "cluster")
    with held_ports(3) as port:
        yield directory, port
        ottla("cluster", "stop", "--data", directory)


def described(port: int) -> dict[str, Any]:
    done = ottla("cluster", "describe", "--bootstrap", f"127.0.0.1:{port}", "--format", "json")
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def pid_of(directory: str, node: int) -> int:
    return int(Path(directory, str(node), "ottla.pid").read_text())


def test_detached_nodes_serve_one_is_killed_and_comes_back_and_all_are_stopped(place: tuple[str, int]) -> None:
    directory, port = place
    began = ottla("cluster", "start", "--data", directory, "--listen", f"127.0.0.1:{port}", "--detach")
    assert (began.returncode, began.stderr) == (0, "")
    assert began.stdout.startswith("3 nodes serve Kafka clients at ")
    told = described(port + 1)
    assert [node["node"] for node in told["nodes"]] == [1, 2, 3]
    assert sum(node["controller"] for node in told["nodes"]) == 1
    assert ottla("topics", "create", "t", "-p", "3", "--bootstrap", f"127.0.0.1:{port + 2}").returncode == 0
    soon(lambda: [node["leaders"] for node in described(port)["nodes"]] == [1, 1, 1])
    soon(lambda: [(node["in_sync"], node["stop"]) for node in described(port)["nodes"]] == [(3, [])] * 3)
    again = ottla("cluster", "start", "--data", directory)
    assert (again.returncode, "runs already" in again.stderr) == (1, True)
    assert ottla("cluster", "start-node", "2", "--data", directory).returncode == 1
    before = pid_of(directory, 2)
    os.kill(before, signal.SIGKILL)
    soon(lambda: pid_of(directory, 2) != before)
    soon(lambda: [node["state"] for node in described(port)["nodes"]] == ["up"] * 3)
    soon(lambda: described(port)["lacking"] == [])
    alone = ottla("cluster", "stop-node", "2", "--data", directory)
    assert (alone.returncode, alone.stdout) == (0, "Stopped node 2.\n"), alone.stderr
    assert ottla("cluster", "stop-node", "2", "--data", directory).returncode == 1
    # Node 1 may learn it a little later.
    soon(lambda: [node["state"] for node in described(port)["nodes"]] == ["up", "down", "up"])
    left = [each["event"] for each in described(port)["in_sync_changes"] if each["node"] == 2]
    assert [event for event in left if event.startswith("left: its node stopped or failed")]
    log = Path(directory, "cluster.log")
    soon(lambda: "node 2 has stopped\n" in log.read_text())  # the supervisor notices only now and then
    stopped = ottla("cluster", "stop", "--data", directory)
    assert (stopped.returncode, stopped.stdout) == (0, "Stopped nodes 1, 3.\n")
    assert ottla("cluster", "stop", "--data", directory).returncode == 1
    started = ottla("cluster", "start-node", "3", "--data", directory)
    assert (started.returncode, started.stdout) == (0, f"Node 3 serves at 127.0.0.1:{port + 2}.\n"), started.stderr
    assert "node 2 was killed by signal 9; it is started again\n" in log.read_text()


def test_an_interrupt_stops_all_in_order_and_a_removed_node_stays_out_until_it_is_started(
    place: tuple[str, int],
) -> None:
    directory, port = place
    words = ["cluster", "start", "--nodes", "2", "--data", directory, "--listen", f"127.0.0.1:{port}", "--no-restart"]
    process = subprocess.Popen(
        [sys.executable, "-m", "ottla", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("2 nodes serve")
    killed = pid_of(directory, 2)
    os.kill(killed, signal.SIGKILL)
    soon(lambda: [node["state"] for node in described(port)["nodes"]] == ["up", "down"])
    assert ottla("nodes", "remove", "2", "--bootstrap", f"127.0.0.1:{port}").returncode == 0
    assert process.stderr is not None
    while (line := process.stderr.readline()) != "node 2 was killed by signal 9\n":
        assert line, "the supervisor has noticed it"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert pid_of(directory, 2) == killed
    assert not Path(f"/proc/{pid_of(directory, 1)}").exists()
    again = ottla("cluster", "start", "--nodes", "2", "--data", directory, "--detach")
    assert again.stdout == f"1 node serves Kafka clients at 127.0.0.1:{port}, data in {directory}.\n"
    way_back = f"`ottla cluster start-node 2 --data {directory}` adds it again"
    assert again.stderr == f"Node 2 was removed from the cluster, and is not started: {way_back}.\n"
    assert ottla("cluster", "start-node", "2", "--data", directory).returncode == 0
    soon(lambda: [node["state"] for node in described(port)["nodes"]] == ["up", "up"])
    assert planned(Path(directory), None, None, []).members == [1, 2]


def test_what_cannot_be_started_is_said(place: tuple[str, int]) -> None:
    directory, port = place
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the fixture keeps the port, and nobody listens
        held.bind(("127.0.0.1", port + 1))
        held.listen()
        failed = ottla("cluster", "start", "--data", directory, "--listen", f"127.0.0.1:{port}", "--detach")
    assert failed.returncode == 1
    assert failed.stderr == (
        f"ottla: The cluster did not start: Node 2 did not start: Can't listen on 127.0.0.1:{port + 1}: Address "
        "already in use. Stop what uses the port, or choose another one.\n"
    )


@pytest.mark.slow("tests/cli/test_cluster.py::test_what_cannot_be_started_is_said")
def test_a_start_that_fails_is_not_remembered(place: tuple[str, int]) -> None:
    directory, port = place
    words = ["cluster", "start", "--data", directory, "--detach"]
    failed = ottla(*words, "--nodes", "1", "--listen", f"127.0.0.1:{port}", "--set", "process.roles=controller")
    assert (failed.returncode, "did not start: process.roles=controller" in failed.stderr) == (2, True)
    assert planned(Path(directory), None, None, []) == Plan(3, "127.0.0.1:9092", [])
    began = ottla(*words, "--nodes", "1", "--listen", f"127.0.0.1:{port}", "--set", "num.partitions=2")
    assert began.returncode == 0, began.stderr
    ottla("cluster", "stop", "--data", directory)
    assert ottla(*words, "--nodes", "2", "--set", "process.roles=controller").returncode == 2
    assert planned(Path(directory), None, None, []) == Plan(1, f"127.0.0.1:{port}", ["num.partitions=2"])


def test_a_node_that_is_more_than_the_plan_says_is_one_that_runs(place: tuple[str, int]) -> None:
    directory, port = place
    words = ["cluster", "start", "--data", directory, "--listen", f"127.0.0.1:{port}", "--detach", "--nodes"]
    assert ottla(*words, "2").returncode == 0
    assert ottla("cluster", "stop", "--data", directory).returncode == 0
    assert ottla("cluster", "start-node", "2", "--data", directory).returncode == 0
    fewer = ottla(*words, "1")
    assert (fewer.returncode, "runs already" in fewer.stderr) == (1, True)
    stopped = ottla("cluster", "stop", "--data", directory)
    assert (stopped.returncode, stopped.stdout) == (0, "Stopped node 2.\n")


def test_a_cluster_is_the_same_under_another_name_of_its_directory(place: tuple[str, int], tmp_path: Path) -> None:
    directory, port = place
    Path(directory).mkdir()
    other = tmp_path / "other"
    other.symlink_to(directory)
    words = ["cluster", "start", "--data", str(other), "--listen", f"127.0.0.1:{port}", "--detach", "--nodes", "1"]
    assert ottla(*words).returncode == 0
    assert "Node 1 runs already" in ottla("cluster", "start-node", "1", "--data", directory).stderr
    stopped = ottla("cluster", "stop", "--data", directory)
    assert (stopped.returncode, stopped.stdout) == (0, "Stopped node 1.\n")


def test_two_who_start_it_at_once_start_it_once(place: tuple[str, int]) -> None:
    directory, port = place
    words = ["cluster", "start", "--data", directory, "--listen", f"127.0.0.1:{port}", "--detach", "--nodes", "2"]
    both = [
        subprocess.Popen(
            [sys.executable, "-m", "ottla", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    told = sorted((process.communicate(timeout=120), process.returncode) for process in both)
    assert [code for _, code in told] == [1, 0]
    assert "runs already" in told[0][0][1]
    stopped = ottla("cluster", "stop", "--data", directory)
    assert (stopped.returncode, stopped.stdout) == (0, "Stopped nodes 1, 2.\n")


@pytest.mark.slow(
    "tests/cli/test_cluster.py::test_detached_nodes_serve_one_is_killed_and_comes_back_and_all_are_stopped"
)
def test_nodes_run_on_where_what_they_say_can_be_written_nowhere(place: tuple[str, int]) -> None:
    directory, port = place
    words = ["cluster", "start", "--nodes", "2", "--data", directory, "--listen", f"127.0.0.1:{port}"]
    with open("/dev/full", "w") as full:
        process = subprocess.Popen(
            [sys.executable, "-m", "ottla", *words], stdout=subprocess.PIPE, stderr=full, text=True
        )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("2 nodes serve")
    before = pid_of(directory, 2)
    os.kill(before, signal.SIGKILL)
    soon(lambda: pid_of(directory, 2) != before or process.poll() is not None)
    soon(lambda: [node["state"] for node in described(port)["nodes"]] == ["up", "up"])
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)


def test_a_node_that_stands_still_keeps_no_other_from_being_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "STOP_S", 0.5)
    frozen, other = (subprocess.Popen(["sleep", "60"]) for _ in range(2))
    frozen.send_signal(signal.SIGSTOP)
    soon(lambda: Path(f"/proc/{frozen.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    try:
        with pytest.raises(CommandError, match=rf"Node 1 \(process {frozen.pid}\) has not ended"):
            processes.end_all({1: frozen.pid, 2: other.pid})
        assert other.wait() == -signal.SIGTERM
    finally:
        frozen.kill()
        frozen.wait()


@pytest.mark.parametrize(
    "written",
    [
        "",
        "null",
        "{}",
        '{"nodes": "x", "listen": "127.0.0.1:1", "settings": []}',
        '{"nodes": 0, "listen": "127.0.0.1:1", "settings": []}',
        '{"nodes": 2, "listen": 5, "settings": []}',
        '{"nodes": 2, "listen": "here", "settings": []}',
        '{"nodes": 2, "listen": "127.0.0.1:1", "settings": [5]}',
        '{"nodes": 2, "listen": "127.0.0.1:1", "settings": [], "removed": 7}',
    ],
)
@pytest.mark.parametrize("command", ["start", "start-node 1"])
def test_what_is_no_plan_of_a_cluster_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], written: str, command: str
) -> None:
    (tmp_path / "cluster.json").write_text(written)
    assert main(["cluster", *command.split(), "--data", str(tmp_path)]) == 1
    assert capsys.readouterr().err == (
        f"ottla: {tmp_path}/cluster.json is not what `ottla cluster start` writes there. Remove it, and start the "
        "cluster with --nodes, --listen and --set as before.\n"
    )


def test_a_cluster_comes_back_as_it_was_but_for_what_is_said(tmp_path: Path) -> None:
    assert planned(tmp_path, None, None, []) == Plan(3, "127.0.0.1:9092", [])
    Plan(5, "127.0.0.1:7000", ["min.insync.replicas=2"]).write(tmp_path)
    assert planned(tmp_path, None, None, []) == Plan(5, "127.0.0.1:7000", ["min.insync.replicas=2"])
    settings = ["num.partitions=2"]
    assert planned(tmp_path, 4, "127.0.0.1:8000", settings) == Plan(4, "127.0.0.1:8000", settings)
    (tmp_path / "meta.properties").touch()
    with pytest.raises(CommandError, match="is the data directory of a node"):
        planned(tmp_path, None, None, [])


@pytest.mark.parametrize("address", ["", "nowhere", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:65536", "127.0.0.1:²"])
def test_what_is_no_address_to_listen_on(address: str) -> None:
    with pytest.raises(UsageError, match="is not an address to listen on: write HOST:PORT"):
        checked(address, 1)


def test_no_cluster_starts_with_protection_that_it_would_not_have(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^super\.users would protect nothing without"):
        planned(tmp_path, 3, None, ["super.users=User:admin"])
    with pytest.raises(UsageError, match=r"^--listen takes HOST:PORT here, not SASL_SSL://127"):
        planned(tmp_path, 3, "SASL_SSL://127.0.0.1:9093", [])
    assert checked("PLAINTEXT://127.0.0.1:9093", 3) == "127.0.0.1:9093"
    assert main(["cluster", "start", "--data", str(tmp_path), "--set", "sasl.jaas.config=x"]) == 2


@pytest.mark.parametrize(("code", "starts"), [(1, 1), (-9, 1), (2, 0), (0, 0)])
def test_a_node_that_no_start_helps_is_not_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, starts: int
) -> None:
    ended = SimpleNamespace(number=1, began=-math.inf, process=SimpleNamespace(pid=7, poll=lambda: code))
    alive = SimpleNamespace(number=1, began=-math.inf, process=SimpleNamespace(pid=8, poll=lambda: None))
    begun: list[int] = []

    def start(directory: Path, plan: Plan, number: int, *, log: None) -> SimpleNamespace:
        begun.append(number)
        return alive

    monkeypatch.setattr("ottla.cli.cluster.NodeProcess", start)
    waits = iter((False, False, True))
    over: Any = SimpleNamespace(wait=lambda seconds: next(waits))
    nodes: list[Any] = [ended]
    tend(tmp_path, Plan(1, "127.0.0.1:9092", []), nodes, over, restart=True)
    assert len(begun) == starts


def test_a_signal_may_arrive_at_any_moment_of_a_wait() -> None:
    """The handler runs in the thread that waits: before each line of the wait, while it holds whatever it holds."""
    over = Interrupted()

    def arrive(frame: FrameType, event: str, argument: object) -> Any:
        over.set()
        return arrive

    sys.settrace(arrive)
    try:
        ended = over.wait(0.001)
    finally:
        sys.settrace(None)
    assert ended


def test_ports_that_there_are_not() -> None:
    assert checked("127.0.0.1:65533", 3) == "127.0.0.1:65533"
    with pytest.raises(UsageError, match="3 nodes from port 65534 on need ports up to 65536: 65535 is the last"):
        checked("127.0.0.1:65534", 3)


def test_a_directory_without_a_cluster_is_named_and_so_is_the_option_for_another(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=f"There is no cluster in {tmp_path}: name its directory with --data"):
        stop_node(2, tmp_path)
