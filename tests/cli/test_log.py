"""`ottla log dump` on files that a node has just written, and on what is no such file."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from ottla.broker.upkeep.checkpoints import HIGH_WATERMARK
from ottla.cli.main import main
from ottla.log.checkpoints import encode_offsets
from ottla.log.config import LogConfig
from ottla.log.files import DiskFiles
from ottla.testing import EmbeddedBroker
from tests.harness.log.support import NOW, batch, open_log, put

FIRST = "00000000000000000000"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a node that has stopped: two batches by an idempotent producer, one group's commit."""
    directory = tmp_path_factory.mktemp("node")
    with EmbeddedBroker(directory=directory) as broker:
        topic = broker.create_topic("dumped", configs={"index.interval.bytes": 0})
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True})
        for value in (b"first", None):
            producer.produce(topic, value, b"key", headers=[("who", b"me")], timestamp=1000)
            producer.flush(30)
        consumer = Consumer(
            {"bootstrap.servers": broker.bootstrap_servers, "group.id": "readers", "auto.offset.reset": "earliest"}
        )
        consumer.subscribe([topic])
        assert len(consumer.consume(2, 30)) == 2
        consumer.commit(asynchronous=False)
        consumer.close()
    return directory


def dump(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[dict[str, Any]]:
    assert main(["log", "dump", *map(str, arguments), "--format", "json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def refused(capsys: pytest.CaptureFixture[str], file: Path) -> str:
    assert main(["log", "dump", str(file)]) == 1
    return capsys.readouterr().err


def test_batches_and_records(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = directory / "dumped-0" / f"{FIRST}.log"
    first, second = dump(capsys, file, "--records")
    assert (first["baseOffset"], second["baseOffset"]) == (0, 1)
    assert first["isvalid"]
    assert second["position"] == first["size"]
    assert second["baseSequence"] == 1
    assert first["records"] == [
        {"offset": 0, "CreateTime": 1000, "headers": [["who", "me"]], "key": "key", "payload": "first"}
    ]
    assert second["records"][0]["payload"] is None
    assert "records" not in dump(capsys, file)[0]
    assert main(["log", "dump", str(file)]) == 0
    assert capsys.readouterr().out.startswith("baseOffset: 0 lastOffset: 0 count: 1 baseSequence: 0 ")


def test_coordinators_records_are_decoded(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (file,) = directory.glob(f"__consumer_offsets-*/{FIRST}.log")
    records = [record for batch in dump(capsys, file, "-r") for record in batch["records"]]
    commits = [record for record in records if record["kind"] == "OffsetCommitKey"]
    assert commits[-1]["key"] == {"group": "readers", "topic": "dumped", "partition": 0}
    assert commits[-1]["payload"]["offset"] == 2


def test_indexes_snapshots_and_checkpoints(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    partition = directory / "dumped-0"
    second = dump(capsys, partition / f"{FIRST}.log")[1]
    assert dump(capsys, partition / f"{FIRST}.index") == [{"offset": 1, "position": second["position"]}]
    assert {"timestamp": 1000, "offset": 0} in dump(capsys, partition / f"{FIRST}.timeindex")
    (snapshot,) = partition.glob("*.snapshot")
    (producer,) = dump(capsys, snapshot)
    assert (producer["producerId"], producer["lastOffset"]) == (second["producerId"], 1)
    assert dump(capsys, partition / "leader-epoch-checkpoint")[0]["startOffset"] == 0
    points = dump(capsys, directory / "recovery-point-offset-checkpoint")
    assert {"topic": "dumped", "partition": 0, "offset": 2} in points


def test_what_is_torn_or_no_log_is_told_of(directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = (directory / "dumped-0" / f"{FIRST}.log").read_bytes()
    torn = tmp_path / f"{FIRST}.log"
    torn.write_bytes(whole[:-1])
    assert "bytes are no whole batch" in refused(capsys, torn)
    flipped = tmp_path / f"{FIRST}.log"
    flipped.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert [batch["isvalid"] for batch in dump(capsys, flipped)] == [True, False]
    for name, content in (
        ("x.log", b"\0" * 100),
        ("0.snapshot", b"\0" * 9),
        ("x.index", b"\0" * 8),
        ("plain", b"text\n"),
    ):
        file = tmp_path / name
        file.write_bytes(content)
        assert refused(capsys, file).startswith(f"ottla: {file}" if name != "x.index" else "ottla: x.index"), name
    assert "expected .log" in refused(capsys, tmp_path / "picture.png")
    assert "cannot be read" in refused(capsys, tmp_path / "absent.log")


def segmented(directory: Path) -> list[str]:
    """A data directory with one log of several segments; the names of its files without suffix."""
    log = open_log(DiskFiles(), LogConfig(segment_bytes=1500, index_interval_bytes=300), f"{directory}/t-0")
    for number in range(70):
        put(log, batch(b"%d" % number, at=NOW + number), epoch=1)
    log.close(NOW)
    (directory / HIGH_WATERMARK).write_bytes(encode_offsets({("t", 0): 70}))
    return [f"{base:020d}" for base in log.bases]


@pytest.mark.parametrize(
    ("at", "kind", "why"),
    [
        (0, ".log", "segments are missing"),
        (1, ".log", "the segment ends, and the next one begins at"),
        (-1, ".log", "but it once ended at 70 or later"),
        (1, ".index", "it was removed"),
        (1, ".timeindex", "it was removed"),
    ],
)
def test_verify_finds_files_that_are_missing(
    at: int, kind: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = segmented(tmp_path)
    assert main(["log", "verify", str(tmp_path)]) == 0
    (tmp_path / "t-0" / f"{names[at]}{kind}").unlink()
    assert main(["log", "verify", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert why in said.out
    assert "1 damaged place in 1 partition" in said.err


def test_verify_finds_a_flipped_bit_in_an_index(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t-0" / f"{segmented(tmp_path)[1]}.index"
    octets = bytearray(path.read_bytes())
    octets[9] ^= 1
    path.write_bytes(octets)
    assert main(["log", "verify", str(tmp_path)]) == 1
    assert f"{path}, position 0" in capsys.readouterr().out


def test_verify_finds_what_was_damaged(directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy)
    assert main(["log", "verify", str(copy)]) == 0
    assert capsys.readouterr().out.startswith("No damage in ")
    path = copy / "dumped-0" / f"{FIRST}.log"
    octets = bytearray(path.read_bytes())
    octets[-1] ^= 1
    swap = path.with_name(f"{FIRST}.log.swap")
    swap.write_bytes(octets)
    assert main(["log", "verify", str(copy), "--topic", "dumped"]) == 1
    assert f"{FIRST}.log.swap, position" in capsys.readouterr().out
    swap.unlink()
    path.write_bytes(octets)
    assert main(["log", "verify", str(copy), "--topic", "dumped", "--format", "json"]) == 1
    (found,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (found["topic"], found["partition"], found["first"], found["end"]) == ("dumped", 0, 1, 2)
    assert main(["log", "verify", str(copy), "--topic", "dumped", "--partition", "0"]) == 1
    said = capsys.readouterr()
    assert "dumped-0: " in said.out
    assert "offset 1: the batch does not match its checksum" in said.out
    assert "1 damaged place in 1 partition" in said.err
    assert main(["log", "verify", str(copy), "--partition", "0"]) == 2
    assert main(["log", "verify", str(copy), "--topic", "other"]) == 1
