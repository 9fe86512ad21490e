"""`ottla cluster`: start, start-node, stop-node, stop, describe a cluster of nodes on this machine; move-metadata.

Coordinates several nodes; processes.py has their files and processes.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ottla import private
from ottla.cli.cluster.facts import facts
from ottla.cli.cluster.move_metadata import move_metadata
from ottla.cli.cluster.plan import (
    DEFAULT_LISTEN,
    NODES_MAX,
    Plan,
    checked,
    files_of,
    has_plan,
    no_cluster,
    read_plan,
    require_settings,
)
from ottla.cli.cluster.processes import (
    METADATA,
    NODE_FILE,
    STOP_S,
    SUPERVISOR,
    NodeProcess,
    await_active,
    directory_of,
    end,
    end_all,
    removed_nodes,
    running,
    running_nodes,
    starting,
    supervisor,
    tell,
)
from ottla.cli.cluster.secured import DEFAULT_ADMIN, client_file, node_settings, set_up
from ottla.cli.connection import HERE, Cluster, Output, client_properties, own_clients, plain_failures
from ottla.cli.console_process import DEFAULT as CONSOLE
from ottla.cli.console_process import ConsoleProcess
from ottla.cli.options import with_shared_options
from ottla.cli.output import CommandError, Format, UsageError, print_json, print_rows, ranges, say, sized
from ottla.cli.replicas.rebalance import rebalance
from ottla.cli.security import plain_name

app = typer.Typer(help="Run several nodes on this machine as one cluster.", no_args_is_help=True)

DEFAULT_DATA = Path("ottla-cluster")
DEFAULT_NODES = 3
LOG = "cluster.log"
"""The log of the process that supervises detached nodes, in the cluster's directory."""
QUICK_S = 10.0
"""A node that exits sooner than this after its start is restarted only after a pause."""
REST_S = 2.0
STOPPED = (0, -signal.SIGTERM)
"""Exit codes of a node that was stopped; the second if it was stopped during its start."""
IN_VAIN = UsageError.code
"""Exit code of a node that cannot start until its settings or its data directory change."""
NODE_TIMEOUT_S = 5.0
"""How long a node may take to report its disk usage."""

app.command(
    "move-metadata", epilog="Example: ottla cluster move-metadata zookeeper://zk1,zk2,zk3/ottla --data /var/lib/ottla"
)(move_metadata)

Data = Annotated[
    Path,
    typer.Option(
        "--data",
        metavar="DIR",
        help="Directory of the cluster; node N keeps its data in DIR/N (default ottla-cluster).",
    ),
]


Secure = Annotated[
    bool | None,
    typer.Option(
        "--secure/--no-secure",
        help="Whether clients use TLS, passwords and ACLs (default: as before, otherwise not). Their files are in "
        "DIR/security.",
        show_default=False,
    ),
]
Certificate = Annotated[
    str | None,
    typer.Option(
        "--tls-cert",
        metavar="FILE",
        help="PEM file with the certificate chain of the nodes; {node} in the path stands for a node's number. Implies "
        "--secure (default: as before, otherwise the start makes certificates).",
    ),
]
CertificateKey = Annotated[
    str | None,
    typer.Option("--tls-key", metavar="FILE", help="PEM file with its private key (default: --tls-cert has the key)."),
]
Authorities = Annotated[
    str | None,
    typer.Option(
        "--tls-ca", metavar="FILE", help="PEM file of the authorities of --tls-cert, which nodes and clients trust."
    ),
]


@app.command(epilog="Example: ottla cluster start --nodes 3 --data ./cluster --listen 127.0.0.1:9092")
def start(
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes", min=1, max=NODES_MAX, help=f"Number of nodes (default: as before, otherwise {DEFAULT_NODES})."
        ),
    ] = None,
    data: Data = DEFAULT_DATA,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            metavar="HOST:PORT",
            help="Address of node 1; the other nodes use the next ports (default: as before, otherwise "
            f"{DEFAULT_LISTEN}).",
        ),
    ] = None,
    set: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Setting of every node; may be repeated (default: as before)."),
    ] = None,
    secure: Secure = None,
    admin: Annotated[
        str,
        typer.Option(
            "--admin",
            metavar="NAME",
            callback=plain_name,
            help=f"Name of the admin that the first start with --secure adds (default: {DEFAULT_ADMIN}).",
        ),
    ] = DEFAULT_ADMIN,
    tls_cert: Certificate = None,
    tls_key: CertificateKey = None,
    tls_ca: Authorities = None,
    no_restart: Annotated[bool, typer.Option("--no-restart", help="Do not restart nodes that exit.")] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return once the nodes serve; they run in the background.")
    ] = False,
    console: Annotated[bool, typer.Option("--console", help=f"Show the cluster in the browser, at {CONSOLE}.")] = False,
) -> int:
    """Start nodes on this machine and restart those that die, until Ctrl-C.

    A cluster that was started before keeps its number of nodes, addresses, settings and security, unless you pass
    new ones. Removed nodes stay out.
    """
    if console and detach:
        raise UsageError("--console ends with its command: run `ottla console` beside a detached cluster.")
    tls = files_of(tls_cert, tls_key, tls_ca)
    directory = directory_of(data)
    if (open_to_others := private.make_directory(directory)) is not None:
        say(open_to_others, err=True)
    with starting(directory) as done:
        plan = planned(directory, nodes, listen, set or [], secure, tls)
        if supervisor(directory) or running_nodes(directory):
            raise CommandError(f"The cluster in {directory} runs already. `ottla cluster stop --data {data}` stops it.")
        for number in plan.removed:
            again = f"`ottla cluster start-node {number} --data {data}` adds it again"
            say(f"Node {number} was removed from the cluster, and is not started: {again}.", err=True)
        if plan.secure:
            set_up(directory, directory / METADATA, plan, admin)
        if detach:
            return detached(directory, plan, done, restart=not no_restart)
        return watch(directory, plan, done, restart=not no_restart, console=console)


@app.command("start-node", epilog="Example: ottla cluster start-node 2 --data ./cluster")
def start_node(
    number: Annotated[int, typer.Argument(metavar="N", min=1, max=NODES_MAX, help="Number of the node.")],
    data: Data = DEFAULT_DATA,
) -> None:
    """Start one node of a cluster: a stopped one, a removed one, or the next new one.

    Return when it serves.

    No process restarts this node if it dies.
    """
    directory = directory_of(data)
    read_plan(directory)
    with starting(directory):
        plan = read_plan(directory)
        if number > plan.nodes + 1:
            raise CommandError(
                f"The cluster in {directory} has nodes 1 to {plan.nodes}: the next new one is {plan.nodes + 1}."
            )
        if number > plan.nodes:
            checked(plan.listen, number)
        if (pid := running(directory, number)) is not None:
            raise CommandError(f"Node {number} runs already (process {pid}).")
        removed = [each for each in removed_nodes(directory, plan.nodes) if each != number]
        plan = replace(plan, nodes=max(plan.nodes, number), removed=removed)
        if plan.secure:
            set_up(directory, directory / METADATA, plan, DEFAULT_ADMIN)
        node = started(directory, plan, number)
        plan.write(directory)
    say(f"Node {number} serves at {node.address}.")


def started(directory: Path, plan: Plan, number: int) -> NodeProcess:
    """Start this node of the plan; return when it is ready and knows itself as a member of the cluster. Raises
    Failure."""
    with open(directory / f"{number}.log", "a+", opener=private.opener) as log:
        node = NodeProcess(directory, plan, number, log=log)
        node.settled.wait()
        if not node.serves:
            log.seek(0)
            words = (log.read().splitlines() or [""])[-1].removeprefix("ottla: ")
            raise did_not_start(node.process.poll(), f"Node {number}", words)
    await_active(directory, plan, [number], [node])
    return node


@app.command("stop-node", epilog="Example: ottla cluster stop-node 2 --data ./cluster")
def stop_node(
    number: Annotated[int, typer.Argument(metavar="N", min=1, max=NODES_MAX, help="Number of the node.")],
    data: Data = DEFAULT_DATA,
) -> None:
    """Stop one node of a cluster. It stays stopped until `start-node`, or until the next start of the cluster."""
    directory = directory_of(data)
    if (pid := running(directory, number)) is None:
        read_plan(directory)
        raise CommandError(f"No node {number} of the cluster in {directory} runs.")
    end(pid, f"Node {number}")
    say(f"Stopped node {number}.")


@app.command(epilog="Example: ottla cluster stop --data ./cluster")
def stop(data: Data = DEFAULT_DATA) -> None:
    """Stop all nodes of a cluster, one after the other."""
    directory = directory_of(data)
    watcher, found = supervisor(directory), running_nodes(directory)
    if watcher is None and not found:
        raise CommandError(
            f"No node of the cluster in {directory} runs." if has_plan(directory) else no_cluster(directory)
        )
    if watcher is not None:
        end(watcher, "The process that restarts nodes", STOP_S * (len(found) + 1))
    end_all(running_nodes(directory))
    say(f"Stopped {'node' if len(found) == 1 else 'nodes'} {', '.join(map(str, found)) or 'none'}.")


app.command(epilog="Example: ottla cluster rebalance --execute --throttle 50000000")(rebalance)

NODE_COLUMNS = (
    *("NODE", "ADDRESS", "RACK", "STATE", "CONTROLLER", "LEADERS", "REPLICAS", "IN-SYNC"),
    *("DISK-USED", "DISK-FREE", "CAN-STOP"),
)
LACKING_COLUMNS = ("TOPIC", "LACK", "COUNT", "PARTITIONS", "NOT-IN-SYNC", "WAITS-FOR", "FAILED-ON")
STOP_COLUMNS = ("STOP-OF", "TOPIC", "THEN", "COUNT", "PARTITIONS")
IN_SYNC_COLUMNS = ("TIME", "NODE", "IN-SYNC", "PARTITIONS", "LEADER")
FEW_COLUMNS = ("TOPIC", "HAS-REPLICAS", "OF")
END_HOLD = (
    "If a topic's configs are unknown, set its retention.ms, retention.bytes or cleanup.policy, or delete "
    "ottla.retention.hold."
)
PARTIAL = (
    "You may not describe the cluster: topics that are hidden from you are missing here, and whether a node can stop "
    "is unknown. `ottla acls add --operation describe --cluster` allows it."
)
ROWS_MAX = 20
"""The most topics in a table; JSON has every partition."""


@app.command(epilog="Example: ottla cluster describe --bootstrap 127.0.0.1:9092")
@with_shared_options
def describe(cluster: Cluster = HERE, format: Output = Format.TABLE) -> None:
    """Show the nodes and the partitions that need attention.

    A node has an address, a rack, a state, the partitions that it leads, hosts and has in sync, a disk, and whether you
    can stop it. By topic, the command shows partitions without a leader or without an in-sync replica, partitions that
    would go offline or refuse acks=all if a node stopped, replicas that left the in-sync replicas in the last hour, and
    topics on hold.
    """
    properties = client_properties(cluster)
    make = own_clients(properties)
    with plain_failures(), make() as client:
        told = facts(
            client, lambda address: own_clients({**properties, "bootstrap.servers": address}, NODE_TIMEOUT_S)()
        )
    if format is Format.JSON:
        print_json(told)
        return
    if told["partial"]:
        say(PARTIAL, err=True)
    print_rows(NODE_COLUMNS, [node_row(node) for node in told["nodes"]], format)
    print_some(LACKING_COLUMNS, lacking_rows(told["lacking"]))
    print_some(STOP_COLUMNS, [row for node in told["nodes"] for row in stop_rows(node)])
    print_some(IN_SYNC_COLUMNS, [tuple(each.values()) for each in told["in_sync_changes"] or ()])
    if on_hold := told["on_hold"]:
        more = f" and {len(on_hold) - ROWS_MAX} more" if len(on_hold) > ROWS_MAX else ""
        say("")
        say(f"On hold, so that nothing of them is deleted: {', '.join(on_hold[:ROWS_MAX])}{more}. {END_HOLD}")
    if few := told["few_replicas"]:
        say("")
        print_rows(FEW_COLUMNS, [tuple(each.values()) for each in few[:ROWS_MAX]], format)
        say(
            f"To add the missing replicas: ottla topics reassign {few[0]['topic']} --replication-factor "
            f"{few[0]['wanted']} --execute"
        )


def node_row(node: dict[str, Any]) -> tuple[Any, ...]:
    """The cells of a node; another table shows the partitions that its stop would affect."""
    *cells, used, free, stop = node.values()
    unknown = stop is None or node["state"] == "down"
    return (*cells, sized(used), sized(free), None if unknown else "no" if stop else "yes")


def lacking_rows(partitions: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """One row per topic and problem of its partitions."""
    grouped: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for each in partitions:
        grouped.setdefault((each["topic"], each["lack"]), []).append(each)
    return [
        (
            topic,
            lack,
            len(some),
            ranges(each["partition"] for each in some),
            ranges({node for each in some for node in each["replicas"] if node not in each["isr"]}),
            ranges({node for each in some for node in each["waits_for"]}),
            ranges({node for each in some for node in each["failed_on"]}),
        )
        for (topic, lack), some in grouped.items()
    ]


def stop_rows(node: dict[str, Any]) -> list[tuple[Any, ...]]:
    """One row per topic and effect that a stop of this node would have on its partitions."""
    grouped: dict[tuple[str, str], list[int]] = {}
    for each in node["stop"] or ():
        grouped.setdefault((each["topic"], each["then"]), []).append(each["partition"])
    return [(node["node"], topic, then, len(some), ranges(some)) for (topic, then), some in grouped.items()]


def print_some(columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    """Print a table of topics after another one; print nothing if there are no rows."""
    if rows:
        say("")
        print_rows(columns, rows[:ROWS_MAX], Format.TABLE)
    if len(rows) > ROWS_MAX:
        say(f"{len(rows) - ROWS_MAX} more topics: --format json shows all.")


# ---- supervising nodes ---------------------------------------------------------------------------------------------


def planned(
    directory: Path,
    nodes: int | None,
    listen: str | None,
    settings: list[str],
    secure: bool | None = None,
    tls: Mapping[str, str] | None = None,
) -> Plan:
    """The plan to start: options that were given, otherwise those of the cluster in this directory, otherwise the
    defaults. Raises CommandError."""
    if (directory / NODE_FILE).exists():
        raise CommandError(f"{directory} is the data directory of a node: choose another one for a cluster.")
    before = read_plan(directory) if has_plan(directory) else Plan(DEFAULT_NODES, DEFAULT_LISTEN, [])
    if tls and secure is False:
        raise UsageError("--tls-cert and --no-secure contradict each other: remove one of them.")
    nodes = before.nodes if nodes is None else nodes
    listen = checked(before.listen if listen is None else listen, nodes)
    settings = settings or before.settings
    secure = bool(tls) or (before.secure if secure is None else secure)
    require_settings(settings, node_settings(directory) if secure else {})
    files = dict(tls or before.tls) if secure else {}
    return Plan(nodes, listen, settings, removed_nodes(directory, nodes), secure, files)


def did_not_start(code: int | None, what: str, words: str) -> CommandError:
    """The failure for a process that ended with this exit code. The command has the same code if another start cannot
    help."""
    kind = UsageError if code == IN_VAIN else CommandError
    return kind(f"{what} did not start: {words or 'it said nothing'}")


class Interrupted:
    """Whether a signal has arrived.

    A handler runs in the main thread, at any line. An event's `set` would wait forever for the lock that the
    interrupted `wait` of the same thread holds; this takes no lock.
    """

    def __init__(self) -> None:
        self._arrived = False

    def set(self) -> None:
        self._arrived = True

    def is_set(self) -> bool:
        return self._arrived

    def wait(self, seconds: float) -> bool:
        """Sleep, and return whether a signal has arrived."""
        if not self._arrived:
            time.sleep(seconds)
        return self._arrived


def watch(directory: Path, plan: Plan, done: Callable[[], None], *, restart: bool, console: bool = False) -> int:
    """Run the nodes until SIGINT or SIGTERM; returns the exit code. Calls `done` once all nodes are ready. `console`:
    whether a console runs beside them."""
    over = Interrupted()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    private.write(directory / SUPERVISOR, f"{os.getpid()}\n")
    nodes = [NodeProcess(directory, plan, number, log=None) for number in plan.members]
    beside: list[ConsoleProcess] = []
    try:
        for node in nodes:
            while not node.settled.wait(0.1) and not over.is_set():
                pass
            if not node.serves and not over.is_set():
                raise did_not_start(node.process.poll(), f"Node {node.number}", node.last_words)
        if not over.is_set():
            await_active(directory, plan, plan.members, nodes)
            plan.write(directory)
            done()
            addresses = [node.address for node in nodes]
            count = "1 node serves" if len(nodes) == 1 else f"{len(nodes)} nodes serve"
            login = f", the admin's login in {client_file(directory)}" if plan.secure else ""
            say(f"{count} Kafka clients at {','.join(addresses)}, data in {directory}{login}.")
            sys.stdout.flush()
            if console:
                of_admin = client_file(directory) if plan.secure else None
                beside.append(ConsoleProcess(",".join(addresses), CONSOLE, tell, of_admin))
        tend(directory, plan, nodes, over, restart=restart)
    finally:
        for each in beside:
            each.stop()
        try:
            end_all({node.number: node.process.pid for node in nodes if node.process.poll() is None})
        finally:
            for node in nodes:
                node.process.poll()  # collect the exit code, so that no zombie remains
            with suppress(FileNotFoundError):
                (directory / SUPERVISOR).unlink()
    return 0


def tend(directory: Path, plan: Plan, nodes: list[NodeProcess], over: Interrupted, *, restart: bool) -> None:
    """Report the nodes that exit, and restart those that were neither stopped nor removed."""
    told: set[int] = set()
    due: dict[int, float] = {}
    while not over.wait(0.05):
        for at, node in enumerate(nodes):
            code = node.process.poll()
            if code is None:
                continue
            number = node.number
            if node.process.pid not in told:
                told.add(node.process.pid)
                again = restart and code not in (*STOPPED, IN_VAIN)
                tell(f"node {number} {how_it_ended(code)}{'; it is started again' if again else ''}")
                if again:
                    quick = time.monotonic() - node.began < QUICK_S
                    due[number] = time.monotonic() + (REST_S if quick else 0)
            if time.monotonic() >= due.get(number, math.inf) and running(directory, number) is None:
                del due[number]
                if number not in removed_nodes(directory, plan.nodes):
                    nodes[at] = NodeProcess(directory, plan, number, log=None)


def how_it_ended(code: int) -> str:
    """How a node ended, for messages, from the exit code of its process."""
    if code in STOPPED:
        return "has stopped"
    return f"was killed by signal {-code}" if code < 0 else f"has ended with code {code}"


def detached(directory: Path, plan: Plan, done: Callable[[], None], *, restart: bool) -> int:
    """Supervise the nodes in a separate process; return once they are ready. The process is a fork and not a new
    program, so that it need not import everything again."""
    log = directory / LOG
    with open(log, "a", opener=private.opener) as said:
        begins = said.tell()
    read, write = os.pipe()
    sys.stdout.flush()
    if os.fork() == 0:
        os.close(read)
        os.setsid()
        with open(os.devnull) as nothing, open(log, "a") as said:
            for old, new in ((nothing.fileno(), 0), (write, 1), (said.fileno(), 2)):
                os.dup2(old, new)
        os.close(write)
        return watch(directory, plan, done, restart=restart)
    os.close(write)
    with open(read) as told:
        line = told.readline()
    if not line:
        _, status = os.wait()
        words = log.read_text()[begins:].splitlines() or [""]
        raise did_not_start(os.waitstatus_to_exitcode(status), "The cluster", words[-1].removeprefix("ottla: "))
    say(line.rstrip())
    return 0
