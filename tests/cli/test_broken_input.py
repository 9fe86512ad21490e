"""Every command with its input broken in the common ways: one sentence that says why, an exit code, no traceback.

The tree of commands is walked, so that a command without a line in CASES fails here.
"""

from __future__ import annotations

import io
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ottla.cli.main import main
from ottla.cli.tree import command
from ottla.spark.platform import session as sessions
from ottla.testing import EmbeddedBroker


@dataclass(frozen=True)
class Case:
    """One command. `whole`: arguments with which it has all it needs; {here} is a topic that is there, {away} an
    address without a broker, {none} a path with nothing at it. `unknown`: arguments that name what is not there.
    `waits`: why the command waits for a broker that is away, where it does. `prints`: with all it needs it prints, and
    it ends in a moment."""

    whole: str = ""
    unknown: str | None = None
    waits: str | None = None
    prints: bool = False


CASES = {
    "serve": Case("--data {none} --listen 127.0.0.1:0 --set no.such.property=1"),
    "help": Case("nosuch"),
    "produce": Case("{here}"),
    "consume": Case("{here} --exit-at-end", "nosuch --exit-at-end"),
    "ship": Case("{none} --once --state {none}", waits="what lines there are is kept until a broker is back"),
    "demo": Case("--no-pipelines --input {none}"),
    "console": Case("--listen 127.0.0.1:0 --read-only"),
    "doctor": Case("--window 0 --only stuck"),
    "cluster start": Case("--data {none} --nodes 1 --listen 127.0.0.1"),
    "cluster start-node": Case("1 --data {none}"),
    "cluster stop": Case("--data {none}"),
    "cluster stop-node": Case("1 --data {none}"),
    "cluster describe": Case(prints=True),
    "cluster rebalance": Case(prints=True),
    "cluster move-metadata": Case("zookeeper://{away}/ottla --data {none}", "zookeeper://{away}/ottla --data {none}"),
    "features list": Case(prints=True),
    "features set": Case("share.version 1 --dry-run", "nosuch 1 --dry-run", prints=True),
    "nodes list": Case(prints=True),
    "nodes drain": Case("1", "77"),
    "nodes remove": Case("77", "77"),
    "topics list": Case(prints=True),
    "topics describe": Case("{here}", "nosuch", prints=True),
    "topics create": Case("{here}x --validate-only", "'no such'", prints=True),
    "topics alter": Case("{here} --set retention.ms=1000", "nosuch --set retention.ms=1000", prints=True),
    "topics delete": Case("{here}x --if-exists", "nosuch", prints=True),
    "topics add-partitions": Case("{here} --total 1", "nosuch --total 2"),
    "topics reassign": Case("{here} --brokers 1", "nosuch --brokers 1", prints=True),
    "topics elect-leaders": Case("{here}", "nosuch", prints=True),
    "groups list": Case(prints=True),
    "groups describe": Case("", "nosuch", prints=True),
    "groups delete": Case("nosuch", "nosuch"),
    "groups reset-offsets": Case("g --topic {here} --to-earliest", "g --topic nosuch --to-earliest", prints=True),
    "groups delete-offsets": Case("g --topic {here}", "nosuch --topic {here}"),
    "share-groups list": Case(prints=True),
    "share-groups describe": Case("", "nosuch", prints=True),
    "share-groups delete": Case("nosuch", "nosuch"),
    "share-groups reset-offsets": Case("g --topic {here} --to-earliest", "g --topic nosuch --to-earliest", prints=True),
    "share-groups delete-offsets": Case("g --topic {here}", "nosuch --topic {here}"),
    "share-groups pause": Case("nosuch", "nosuch"),
    "share-groups resume": Case("nosuch", "nosuch"),
    "share-groups inspect": Case("nosuch", "nosuch"),
    "transactions list": Case(prints=True),
    "transactions describe": Case("nosuch", "nosuch"),
    "transactions find-hanging": Case("--topic {here}", "--topic nosuch", prints=True),
    "transactions abort": Case(
        "--topic {here} --partition 0 --start-offset 0", "--topic nosuch --partition 0 --start-offset 0"
    ),
    "share-groups redrive": Case("g --dead-letters {here}", "g --dead-letters nosuch", prints=True),
    "kmq create": Case("{here} --partitions 1", "'no such'", prints=True),
    "kmq tracker": Case("{here}", "nosuch"),
    "kmq stats": Case("nosuch", "nosuch"),
    "kmq redrive": Case("nosuch", "nosuch"),
    "pipeline list": Case(unknown="--reports-from nosuch"),
    "pipeline describe": Case("nosuch", "nosuch --reports-from nosuch"),
    "pipeline kmq-tracker": Case("{here} --checkpoint {none} --once --wait 0", "nosuch --checkpoint {none} --once"),
    "pipeline replay": Case("-t {here} --count --wait 0", "-t nosuch --count"),
    "pipeline activity": Case("-t {here} --table {none} --once --wait 0", "-t nosuch --table {none} --once"),
    "pipeline archive": Case("-t {here} --table {none} --once --wait 0", "-t nosuch --table {none} --once"),
    "pipeline archive verify": Case("--table {none} --wait 0", "--table {none}"),
    "pipeline archive restore": Case("--table {none} --to-topic {here} --wait 0", "--table {none} --to-topic nosuch"),
    "pipeline archive compact": Case("--table {none}", "--table {none}"),
    "pipeline archive vacuum": Case("--table {none}", "--table {none}"),
    "pipeline logs": Case("-t {here} --table {none} --once --wait 0", "-t nosuch --table {none} --once"),
    "pipeline logs find": Case("x --table {none}", "x --table {none}"),
    "records delete": Case("{here} --before 0", "nosuch --before 0", prints=True),
    "configs describe": Case("topic {here}", "broker 77", prints=True),
    "configs history": Case("topic {here}", prints=True),
    "configs alter": Case("topic {here} --set retention.ms=1000", "broker 77 --set log.retention.ms=1000", prints=True),
    "metrics dashboard": Case(prints=True),
    "metrics alerts": Case(prints=True),
    "quotas list": Case(prints=True),
    "quotas alter": Case("--user ada --set producer_byte_rate=1000", prints=True),
    "security init-cluster": Case("--out {none} --metadata {none}.sqlite --node 1=localhost"),
    "security init": Case("--data {none} --listen 127.0.0.1:0"),
    "security renew": Case("--data {none}", "--data {none}"),
    "users list": Case(prints=True),
    "users add": Case("ada --password-file {none}", "nosuch --password-file {none}"),
    "users password": Case("ada --password-file {none}", "nosuch"),
    "users remove": Case("ada --yes", "nosuch --yes"),
    "acls list": Case("--topic {here}"),
    "acls add": Case("--principal User:ada --operation read --topic {here}"),
    "acls remove": Case("--principal User:ada --yes", "--principal User:nosuch --yes"),
    "acls check": Case(
        "--principal User:ada --operation read --topic {here}", "--principal User:ada --operation read --topic nosuch"
    ),
    "log dump": Case("{none}.log", "{none}.log"),
    "log verify": Case("{none}", "{none}"),
}


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every command that does something, groups that do something by themselves included."""
    below = getattr(command, "commands", None)
    if below is None or (path and command.invoke_without_command):
        yield " ".join(path), command
    for name, each in (below or {}).items():
        yield from leaves(each, (*path, name))


TREE = dict(leaves(command()))
names = pytest.mark.parametrize("name", list(TREE))


def options_of(name: str) -> list[Any]:
    return [each for each in TREE[name].params if each.param_type_name == "option" and each.name != "help"]


def takes(name: str, option: str) -> bool:
    return any(option in each.opts for each in options_of(name))


@pytest.fixture(scope="session")
def away() -> Iterator[str]:
    """An address where nobody listens, and nobody else will."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


@pytest.fixture(scope="session")
def here(ottla_broker: EmbeddedBroker) -> str:
    return ottla_broker.create_topic("broken-input")


Told = Callable[[str, str], tuple[int, str]]


@pytest.fixture
def told(
    ottla_broker: EmbeddedBroker,
    away: str,
    here: str,
    tmp_path: Path,
    printed: Callable[[], tuple[str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> Told:
    """Run a command in this process: (exit code, standard error)."""
    monkeypatch.setenv("OTTLA_BOOTSTRAP", ottla_broker.bootstrap_servers)
    monkeypatch.delenv("OTTLA_METRICS", raising=False)
    monkeypatch.chdir(tmp_path)

    def run(name: str, arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\n")))
        given = shlex.split(arguments.format(here=here, away=away, none=tmp_path / "none"))
        printed()
        code = main([*name.split(), *given])
        return code, printed()[1]

    return run


def assert_sentence(told: tuple[int, str], *codes: int, says: str = "") -> None:
    """It ended with one of these codes and one sentence."""
    code, err = told
    assert code in codes, (code, err)
    assert "Traceback" not in err
    assert "fault of Ottla" not in err, err
    (line,) = err.splitlines()
    assert line.startswith("ottla: "), err
    assert line[-1] in ".?", err
    assert says in line


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What can be told without Spark is told before it starts, or before a session that runs already is used."""
    asked: list[object] = []

    def start(*given: object) -> None:
        asked.append(given)
        raise sessions.PipelineFailedError("Spark was asked for.")

    for name in ("adapted", "launch"):
        monkeypatch.setattr(sessions, name, start)
    yield
    assert not asked


def test_every_command_has_a_case() -> None:
    assert set(CASES) == set(TREE)


@names
def test_an_option_that_is_none(told: Told, name: str) -> None:
    assert_sentence(told(name, CASES[name].whole + " --no-such-option"), 2, says="--no-such-option")


@names
def test_an_option_without_its_value(told: Told, name: str) -> None:
    values = [each for each in options_of(name) if not each.is_flag]
    if name == "serve" or not values:
        pytest.skip("has no option with a value here")
    assert_sentence(told(name, f"{CASES[name].whole} {values[0].opts[0]}"), 2, says=values[0].opts[0])


@names
def test_no_arguments_where_some_are_needed(told: Told, name: str) -> None:
    needed = [each for each in TREE[name].params if each.required]
    if needed:
        assert_sentence(told(name, ""), 2)


@names
def test_no_broker(told: Told, away: str, name: str) -> None:
    case = CASES[name]
    if not takes(name, "--bootstrap"):
        pytest.skip("asks no broker")
    if case.waits:
        pytest.skip(f"waits: {case.waits}")
    code, err = told(name, f"{case.whole} --bootstrap {{away}}")
    *waiting, last = err.splitlines()
    assert all(line.startswith("Waiting for a broker") for line in waiting), err
    assert_sentence((code, last), 1, says=away if "{none}" not in case.whole or "pipeline" not in name else "")


@names
def test_what_is_not_there(told: Told, name: str) -> None:
    unknown = CASES[name].unknown
    if unknown is None:
        pytest.skip("asks for nothing that must be there")
    assert_sentence(told(name, unknown), 1)


def test_nothing_was_made_by_asking(told: Told, ottla_broker: EmbeddedBroker) -> None:
    from ottla.client import Client

    for name, case in CASES.items():
        if case.unknown is not None and takes(name, "--bootstrap"):
            told(name, case.unknown)
    with Client(ottla_broker.bootstrap_servers) as client:
        there = {topic.name for topic in client.metadata(None).topics}
    assert not {each for each in there if "nosuch" in each or "no such" in each}


@names
def test_properties_that_are_none(told: Told, name: str) -> None:
    if not takes(name, "--command-property"):
        pytest.skip("takes no properties")
    whole = CASES[name].whole
    assert_sentence(told(name, f"{whole} --command-property nonsense"), 2, says="'nonsense'")
    assert_sentence(told(name, f"{whole} --command-config {{none}}"), 1, says="cannot be read")


@names
def test_values_that_make_no_sense(told: Told, name: str) -> None:
    """Each option by itself: empty and nonsense, with no broker, so that what is understood ends there."""
    case = CASES[name]
    if name == "serve" or case.waits:
        pytest.skip("see test_serve.py and tests/ship")
    where = " --bootstrap {away}" if takes(name, "--bootstrap") else ""
    for option in options_of(name):
        if option.is_flag or option.name in ("bootstrap", "wait"):
            continue
        for value in ("''", "nonsense", "9" * 25):
            code, err = told(name, f"{case.whole}{where} {option.opts[0]}={value}")
            last = err.splitlines()[-1] if err else ""
            assert_sentence((code, last), 1, 2)


@pytest.mark.parametrize("field", ["topic", "partition", "replicas"])
@pytest.mark.parametrize(
    "value",
    ["1e999", "NaN", "null", "-1", "9" * 25, '"12"', "[1.5]", pytest.param("[" * 100_000, id="deep")],
)
def test_plans_that_make_no_sense(told: Told, tmp_path: Path, field: str, value: str) -> None:
    """What `topics reassign --plan` reads, with one field of it broken."""
    fields = {"topic": '"orders"', "partition": "0", "replicas": "[1]", field: value}
    plan = tmp_path / "plan.json"
    moved = ", ".join(f'"{key}": {each}' for key, each in fields.items())
    plan.write_text(f'{{"partitions": [{{{moved}}}]}}')
    assert_sentence(told("topics reassign", f"--plan {plan} --execute"), 1, says="is no")


def test_a_plan_that_names_a_partition_twice(told: Told, tmp_path: Path, here: str) -> None:
    plan = tmp_path / "plan.json"
    moved = ", ".join(f'{{"topic": "{here}", "partition": 0, "replicas": [{node}]}}' for node in (1, 1))
    plan.write_text(f'{{"partitions": [{moved}]}}')
    assert_sentence(told("topics reassign", f"--plan {plan} --execute"), 1, says=f"names {here}-0 more than once.")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ("--plan {none} --bootstrap {away}", 1, "can't be read"),
        ("{here} --plan {none} --bootstrap {away}", 2, "Name no topics"),
        ("--brokers 1 --bootstrap {away}", 2, "Name the topics"),
        ("{here} --brokers 1,one --bootstrap {away}", 2, "'1,one'"),
        ("{here} --brokers 1,1 --bootstrap {away}", 2, "twice"),
        ("{here} --brokers 77", 1, "77"),
        ("{here}", 2, "Choose one"),
        ("nosuch --list", 1, "nosuch"),
        ("nosuch --cancel", 1, "nosuch"),
    ],
)
def test_moves_that_make_no_sense(told: Told, arguments: str, code: int, says: str) -> None:
    """What `topics reassign` understands by itself ends before a broker is asked."""
    assert_sentence(told("topics reassign", arguments), code, says=says)


@pytest.mark.parametrize("place", ["zookeeper://", "zookeeper://zk:x/ottla", "zookeeper://{away}/../", "{away}"])
def test_places_in_zookeeper_that_make_no_sense(told: Told, place: str) -> None:
    assert_sentence(told("cluster move-metadata", place + " --data {none}"), 2)


def test_metadata_that_cannot_be_read_is_not_moved(told: Told, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "metadata.sqlite").write_bytes(b"no database " * 20)
    assert_sentence(told("cluster move-metadata", "zookeeper://{away}/ottla --data {none}"), 1, says="metadata.sqlite")


@contextmanager
def output_to(where: str) -> Iterator[None]:
    """Standard output that takes nothing."""
    if where == "/dev/full":
        out = os.open(where, os.O_WRONLY)
    else:
        end, out = os.pipe()
        os.close(end)
    with os.fdopen(out, "w") as broken, redirect_stdout(broken):
        yield


nowhere = pytest.mark.parametrize("nowhere", ["/dev/full", "a closed pipe"])


def assert_untold(told: tuple[int, str], nowhere: str) -> None:
    """A full disk is told, a reader that has gone is not."""
    if nowhere == "/dev/full":
        assert_sentence(told, 1, says="No space left on device")
    else:
        assert told == (0, "")


@names
@nowhere
def test_help_that_cannot_be_written(told: Told, nowhere: str, name: str) -> None:
    with output_to(nowhere):
        ended = told(name, "--help")
    assert_untold(ended, nowhere)


@nowhere
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.prints])
def test_output_that_cannot_be_written(told: Told, nowhere: str, name: str) -> None:
    with output_to(nowhere):
        code, err = told(name, CASES[name].whole + (" --format json" if takes(name, "--format") else ""))
    err = "".join(line for line in err.splitlines(keepends=True) if line.startswith("ottla: "))
    assert_untold((code, err), nowhere)


WRITTEN_TOO = pytest.mark.slow("tests/cli/test_broken_input.py::test_a_process_whose_output_cannot_be_written")
LONG_AND_SHORT = [
    "topics list",
    pytest.param("configs describe broker 1 --all", marks=WRITTEN_TOO),
    pytest.param("consume {here} -e --from-beginning", marks=WRITTEN_TOO),
    "serve -h",
]


@pytest.mark.parametrize("command", LONG_AND_SHORT)
def test_a_process_whose_output_cannot_be_written(command: str, ottla_broker: EmbeddedBroker, here: str) -> None:
    """To its very end, where the interpreter writes what is left in its buffers."""
    from ottla.client import Client
    from ottla.protocol.records import Record, build_batch

    with Client(ottla_broker.bootstrap_servers) as client:
        client.produce_raw(here, 0, build_batch([Record(value=b"x" * 10_000)]))
    environment = {**os.environ, "OTTLA_BOOTSTRAP": ottla_broker.bootstrap_servers}
    arguments = [sys.executable, "-m", "ottla", *command.format(here=here).split()]
    end, closed = os.pipe()
    os.close(end)
    with open("/dev/full", "w") as full, os.fdopen(closed, "w") as pipe:
        started = [
            subprocess.Popen(arguments, stdout=out, stderr=subprocess.PIPE, text=True, env=environment)
            for out in (full, pipe)
        ]
    (full_err, pipe_err) = (each.communicate(timeout=60)[1] for each in started)
    assert_sentence((started[0].returncode, full_err), 1, says="No space left on device")
    assert (started[1].returncode, pipe_err) == (0, "")
