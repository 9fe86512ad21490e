"""Log in to a secured node with clients of other projects: franz-go, sarama, kafkajs, and Kafka's own in Java.

    python -m tools.conform_secured CLIENT [CLIENT ...] [--libs DIR]

Each client gets the files that `ottla security init` has written: the node's authority, and the admin's login by
SCRAM-SHA-512 over TLS. It writes 100 records and reads them back in a group, as the admin and as a user with ACLs. It
must be refused with a wrong password, and as a user without ACLs. Fails too when the node logs an error of its own.

`streams` runs a Kafka Streams application (`secured_streams`) with the ACLs that it needs, and without one of them.
`tools` runs Kafka's own commands.

franz-go and sarama need Go, kafkajs needs npm; the first run gets the libraries from their registries. Kafka's own
clients need `java` and the jars of a Kafka distribution, `--libs DIR`. The programs are in tools/secured_clients/.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ottla.client.sasl import Login
from ottla.client.set_up import ClientSetUp
from tools import secured_streams
from tools.node_process import held_ports

PROGRAMS = Path(__file__).resolve().parent / "secured_clients"
MECHANISM, TOPIC = "SCRAM-SHA-512", "secured"
OK, WRONG_PASSWORD, NOT_ALLOWED = 0, 3, 4
ENDS_WITHIN_S = 240


@dataclass(frozen=True, slots=True)
class Case:
    """A login, and the exit code that a client has to end with. `files`: by the name that `init` gives them."""

    name: str
    files: dict[str, Path]
    expected: int


def ottla(*words: str) -> str:
    """Run a command; what it prints. Ends the program if it fails."""
    ended = subprocess.run([sys.executable, "-m", "ottla", *words], capture_output=True, text=True)
    if ended.returncode:
        sys.exit(f"ottla {words[0]} {words[1]} ended with {ended.returncode}: {ended.stderr}")
    return ended.stdout


@contextmanager
def secured_node(directory: Path) -> Iterator[Path]:
    """A node with the set-up of `ottla security init` for the length of a block; the folder of its files."""
    data, log = directory / "data", directory / "node.log"
    with held_ports(1) as port, log.open("wb") as errors:
        ottla("security", "init", "--data", str(data), "--listen", f"127.0.0.1:{port}")
        command = [sys.executable, "-m", "ottla", "serve", "--config", str(data / "security" / "node.properties")]
        with subprocess.Popen([*command, "--log-format", "json"], stdout=subprocess.PIPE, stderr=errors) as node:
            assert node.stdout is not None
            try:
                if not node.stdout.readline():
                    sys.exit(f"the node did not start: {log.read_text()}")
                yield data / "security"
            finally:
                node.terminate()
                node.wait()
    own = [line for line in log.read_text().splitlines() if '"ERROR"' in line.upper() or "Traceback" in line]
    if own:
        sys.exit("the node logged errors of its own:\n" + "\n".join(own))


def cases(folder: Path, directory: Path) -> list[Case]:
    """Users and ACLs on the node, and the files of each login."""
    as_admin = ("--command-config", str(folder / "client.properties"))
    ottla("topics", "create", TOPIC, *as_admin)
    made = {"ada": "lovelace", "bob": "builder"}
    for user, password in made.items():
        secret = directory / f"{user}.secret"
        secret.touch(0o600)
        secret.write_text(password)
        ottla("users", "add", user, "--password-file", str(secret), *as_admin)
    names = ("--topic", TOPIC, "--group", "ada-", "--prefix")
    ottla("acls", "add", "--principal", "User:ada", "--producer", "--consumer", *names, *as_admin)
    own = {name: folder / name for name in ("client.properties", "client-java.properties")}
    settings = properties_of(own["client.properties"])
    logins = {**made, settings["sasl.username"]: "wrong"}
    files: dict[str, dict[str, Path]] = {}
    for user, password in logins.items():
        login = Login(MECHANISM, user, password)
        set_up = ClientSetUp(settings["bootstrap.servers"], settings["ssl.ca.location"], login=login)
        texts = {"client.properties": set_up.librdkafka(), "client-java.properties": set_up.java()}
        files[user] = {}
        for name, text in texts.items():
            path = files[user][name] = directory / f"{user}-{name}"
            path.write_text("".join(f"{key}={value}\n" for key, value in text.items()))
    return [
        Case("admin", own, OK),
        Case("ada", files["ada"], OK),
        Case("wrong password", files[settings["sasl.username"]], WRONG_PASSWORD),
        Case("bob, without ACLs", files["bob"], NOT_ALLOWED),
    ]


# ---- the clients ---------------------------------------------------------------------------------------------------


def go_program(name: str, directory: Path) -> list[str]:
    source, program = PROGRAMS / "go", directory / name
    subprocess.run(["go", "build", "-o", str(program), f"./{name}"], cwd=source, check=True)
    return [str(program)]


def kafkajs(directory: Path) -> list[str]:
    made = directory / "kafkajs"
    shutil.copytree(PROGRAMS / "kafkajs", made)
    subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund"], cwd=made, check=True)
    return ["node", str(made / "main.js")]


def java(directory: Path, libs: str | None) -> list[str]:
    if libs is None:
        sys.exit("the Java client needs --libs DIR, the jars of a Kafka distribution.")
    classes = directory / "classes"
    source = PROGRAMS / "java" / "Secured.java"
    subprocess.run(["javac", "-cp", f"{libs}/*", "-d", str(classes), str(source)], check=True)
    return ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", f"{classes}:{libs}/*", "Secured"]


def command_of(client: str, directory: Path, libs: str | None) -> list[str]:
    if client == "kafkajs":
        return kafkajs(directory)
    if client == "java":
        return java(directory, libs)
    return go_program("franz" if client == "franz-go" else client, directory)


def try_login(client: str, command: list[str], case: Case) -> bool:
    """Run a client with a login; whether it ended as it should."""
    name = "client-java.properties" if client == "java" else "client.properties"
    group = f"{'ada' if case.name == 'ada' else 'other'}-{client}"
    words = [*command, str(case.files[name]), TOPIC, group]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=ENDS_WITHIN_S, env=os.environ)
    passed = ended.returncode == case.expected
    print(f"{client}, {case.name}: {'passed' if passed else f'FAILED with {ended.returncode}'}", flush=True)
    if not passed:
        print(ended.stdout, ended.stderr)
    return passed


# ---- Kafka Streams -------------------------------------------------------------------------------------------------


def try_streams(folder: Path, directory: Path, logins: list[Case], libs: str | None) -> list[bool]:
    """Run the word count as the admin, as users without a right that it needs, and as one with all of them. `logins`:
    those of `cases`, whose user `ada` has no rights on its topics."""
    if libs is None:
        sys.exit("Kafka Streams needs --libs DIR, with the jars of kafka-streams.")
    as_admin = ("--command-config", str(folder / "client.properties"))
    for topic in secured_streams.TOPICS:
        ottla("topics", "create", topic, "--partitions", "3", *as_admin)
    application = secured_streams.WordCount(libs, directory, properties_of(folder / "client.properties"))
    application.write_lines()
    login = {case.name: case.files["client-java.properties"] for case in logins}
    to_ada = ("--principal", "User:ada")
    passed: list[bool] = []

    def note(name: str, is_right: bool, log: str) -> None:
        print(f"streams, {name}: {'passed' if is_right else 'FAILED'}", flush=True)
        print("" if is_right else log[-4000:], end="")
        passed.append(is_right)

    for name, expected in (("wrong password", WRONG_PASSWORD), ("bob, without ACLs", NOT_ALLOWED)):
        code = application.code("refused", login[name])
        note(name, code == expected, f"ended with {code}\n{application.log_of('refused')}")
    for words in secured_streams.RIGHTS.values():
        ottla("acls", "add", *to_ada, *words, *as_admin)
    note("ada", application.counts_all(login["ada"]), application.log_of(secured_streams.APPLICATION))
    for name in secured_streams.NEEDED:
        words = secured_streams.RIGHTS[name]
        ottla("acls", "remove", *to_ada, *(each for each in words if each != "--prefix"), "--yes", *as_admin)
        other = f"{secured_streams.APPLICATION}-{len(passed)}"
        code = application.code(other, login["ada"])
        note(f"may not {name}", code == NOT_ALLOWED, f"ended with {code}\n{application.log_of(other)}")
        ottla("acls", "add", *to_ada, *words, *as_admin)
    return passed


# ---- Kafka's own commands ------------------------------------------------------------------------------------------

TOOLS: dict[str, tuple[str, ...]] = {
    "org.apache.kafka.tools.TopicCommand": ("--describe", "--topic", TOPIC),
    "org.apache.kafka.tools.GetOffsetShell": ("--topic", TOPIC),
    "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand": ("--list",),
    "org.apache.kafka.tools.BrokerApiVersionsCommand": (),
    "kafka.admin.ConfigCommand": ("--describe", "--entity-type", "users"),
    "org.apache.kafka.tools.AclCommand": ("--list", "--topic", TOPIC),
}
"""Kafka's commands, and what they ask."""


def try_tools(folder: Path, logins: list[Case], libs: str | None) -> list[bool]:
    """Run each command as the admin, and as a client with a wrong password."""
    if libs is None:
        sys.exit("Kafka's commands need --libs DIR, with the jars of kafka-tools.")
    bootstrap = properties_of(folder / "client.properties")["bootstrap.servers"]
    passed: list[bool] = []
    for tool, words in TOOLS.items():
        for case in logins:
            if case.name not in ("admin", "wrong password"):
                continue
            login = ("--bootstrap-server", bootstrap, "--command-config", str(case.files["client-java.properties"]))
            command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", f"{libs}/*", tool, *login, *words]
            ended = subprocess.run(command, capture_output=True, text=True, timeout=ENDS_WITHIN_S)
            said = ended.stdout + ended.stderr
            is_refused = "SaslAuthenticationException" in said
            is_right = is_refused if case.expected == WRONG_PASSWORD else not is_refused and ended.returncode == 0
            print(f"{tool.rpartition('.')[2]}, {case.name}: {'passed' if is_right else f'FAILED: {said}'}", flush=True)
            passed.append(is_right)
    return passed


def properties_of(path: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in path.read_text().splitlines() if not line.startswith("#"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = ("franz-go", "sarama", "kafkajs", "java", "streams", "tools")
    parser.add_argument("clients", metavar="CLIENT", nargs="+", choices=known)
    parser.add_argument("--libs", metavar="DIR", help="the jars of a Kafka distribution, for java, streams and tools")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ottla-secured-") as place:
        directory = Path(place)
        clients = [each for each in given.clients if each not in ("streams", "tools")]
        commands = {client: command_of(client, directory, given.libs) for client in clients}
        with secured_node(directory) as folder:
            logins = cases(folder, directory)
            passed = [try_login(client, command, case) for client, command in commands.items() for case in logins]
            if "streams" in given.clients:
                passed += try_streams(folder, directory, logins, given.libs)
            if "tools" in given.clients:
                passed += try_tools(folder, logins, given.libs)
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
