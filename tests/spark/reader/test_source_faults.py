"""Reading from a broker that hangs up, moves away or sends nonsense; and a partition of Kafka's with transactions."""

from __future__ import annotations

import base64
import json
import shutil
import ssl
import subprocess
import zlib
from pathlib import Path

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import PartitionData
from ottla.protocol.records import CorruptRecordsError, Record, build_batch
from ottla.spark.reader import reading
from ottla.spark.reader.offsets import Cluster
from ottla.spark.reader.plan import Range
from ottla.spark.reader.reading import ReadFailedError, after
from tests.harness.spark.reader.scripted_broker import TOPIC, Behaviour, ScriptedCluster, ScriptedNode
from tests.harness.spark.reader.source_stage import options_of, rows_by_source
from tests.harness.waiting import soon

GOLDEN = json.loads((Path(__file__).parent / "golden" / "transactions.json").read_text())
RECORDS = zlib.decompress(base64.b64decode(GOLDEN["records"]))
COMMITTED = {"kafka__isolation__level": "read_committed"}


def cluster() -> ScriptedCluster:
    return ScriptedCluster(
        RECORDS,
        aborted=[(producer, first) for producer, first in GOLDEN["aborted"]],
        high_watermark=GOLDEN["high_watermark"],
        last_stable_offset=GOLDEN["last_stable_offset"],
    )


def read(node: ScriptedNode, **given: str) -> list[int]:
    small = {"kafka__max__partition__fetch__bytes": "300", "kafkaConsumer__pollTimeoutMs": "5000"}
    return [row[1] for row in rows_by_source(options_of(node.bootstrap, TOPIC, **small, **given))]


@pytest.mark.parametrize("max_bytes", ["1", "150", "700", "100000"])
def test_kafkas_transactions(max_bytes: str) -> None:
    """Committed, aborted and open ones of two producers, others' records between them, however the answers are cut."""
    size = {"kafka__max__partition__fetch__bytes": max_bytes}
    with ScriptedNode(cluster()) as node:
        for given, expected in ((COMMITTED, GOLDEN["committed"]), ({}, GOLDEN["uncommitted"])):
            rows = rows_by_source(options_of(node.bootstrap, TOPIC, **size, **given))
            assert [row[1] for row in rows] == expected
            assert all(row[3] is not None for row in rows)


def test_an_open_transaction_is_where_a_committed_read_ends() -> None:
    with ScriptedNode(cluster()) as node:
        for given, until in ((COMMITTED, "last_stable_offset"), ({}, "high_watermark")):
            (only,) = Cluster(options_of(node.bootstrap, TOPIC, **given)).batch_ranges()
            assert only.until == GOLDEN[until]


def every(n: int, outcome: str | int) -> Behaviour:
    return lambda count: outcome if count % n == n - 1 else "serve"


@pytest.mark.parametrize(
    "outcome",
    [
        "hang up",
        int(ErrorCode.NOT_LEADER_OR_FOLLOWER),
        int(ErrorCode.FENCED_LEADER_EPOCH),
        int(ErrorCode.OFFSET_OUT_OF_RANGE),
    ],
)
def test_no_row_is_lost_or_repeated(outcome: str | int) -> None:
    with ScriptedNode(cluster(), every(2, outcome)) as node:
        assert read(node, **COMMITTED) == GOLDEN["committed"]
        assert len(node.fetches) > 10


def test_a_leader_that_moves_is_followed() -> None:
    scripted = cluster()

    def move(count: int) -> str:
        if count == 3:
            scripted.leader = 2
        return "serve"

    with ScriptedNode(scripted, move) as first, ScriptedNode(scripted) as second:
        assert read(first) == GOLDEN["uncommitted"]
        assert len(second.fetches) > 3


def test_a_leader_that_is_gone_for_good_is_said_in_bounded_time() -> None:
    with ScriptedNode(cluster(), lambda count: "serve" if count < 2 else "hang up") as node:
        options = options_of(node.bootstrap, TOPIC, kafkaConsumer__pollTimeoutMs="300", kafka__fetch__max__bytes="300")
        with pytest.raises(
            ReadFailedError, match=r"Nothing more could be read within 300 ms: The broker at .* hung up\."
        ):
            rows_by_source(options)


def test_a_refusal_for_good_is_said_at_once() -> None:
    refused = pytest.raises(
        ReadFailedError, match=f"{TOPIC}-0 can't be read at offset 0: {TOPIC}-0: TOPIC_AUTHORIZATION_F"
    )
    with ScriptedNode(cluster(), lambda _: int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)) as node, refused:
        rows_by_source(options_of(node.bootstrap, TOPIC))


def test_the_next_fetch_is_asked_for_before_the_last_is_decoded() -> None:
    with ScriptedNode(cluster()) as node:
        options = options_of(node.bootstrap, TOPIC, kafka__max__partition__fetch__bytes="300")
        batches = reading.read([Range(TOPIC, 0, 0, GOLDEN["high_watermark"])], options)
        next(batches)
        soon(lambda: len(node.fetches) >= 2)
        assert next(request.topics[0].partitions[0].fetch_offset for request in node.fetches) == 0
        assert len(node.fetches) == 2
        batches.close()


def test_no_more_is_asked_for_than_is_left_of_a_range() -> None:
    """What a partition's offsets weigh is known from the fetch before."""
    big = bytes(build_batch([Record(value=b"v" * 1000) for _ in range(100)]))
    batches = b"".join(stamped(big, 100 * i) for i in range(40))
    scripted = ScriptedCluster(batches, high_watermark=4000, last_stable_offset=4000)
    with ScriptedNode(scripted) as node:
        options = options_of(node.bootstrap, TOPIC)
        assert len(rows_by_source(options, [Range(TOPIC, 0, 0, 4000)])) == 4000
        assert len(rows_by_source(options, [Range(TOPIC, 0, 0, 100)])) == 100
        asked = [request.topics[0].partitions[0].partition_max_bytes for request in node.fetches]
        assert asked[0] == 4 << 20
        assert asked[-1] < 200_000


@pytest.fixture(scope="module")
def pems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `broker.pem` and `client.pem`, each a key and a certificate that signs itself."""
    if shutil.which("openssl") is None:
        pytest.skip("makes its certificates with openssl")
    folder = tmp_path_factory.mktemp("pems")
    for name in ("broker", "client"):
        words = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
        words += f" -keyout {name}.key -out {name}.crt -subj /CN={name} -addext subjectAltName=IP:127.0.0.1"
        subprocess.run(words.split(), cwd=folder, check=True, capture_output=True)
        (folder / f"{name}.pem").write_text((folder / f"{name}.key").read_text() + (folder / f"{name}.crt").read_text())
    return folder


@pytest.mark.parametrize("as_text", [False, True])
def test_tls_with_certificates_on_both_sides(pems: Path, as_text: bool) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pems / "broker.pem")
    context.load_verify_locations(pems / "client.crt")
    context.verify_mode = ssl.CERT_REQUIRED
    files = {
        "kafka.ssl.truststore.location": str(pems / "broker.crt"),
        "kafka.ssl.keystore.location": str(pems / "client.pem"),
    }
    texts = {
        "kafka.ssl.truststore.certificates": (pems / "broker.crt").read_text(),
        "kafka.ssl.keystore.certificate.chain": (pems / "client.crt").read_text(),
        "kafka.ssl.keystore.key": (pems / "client.key").read_text(),
    }
    given = {"kafka.security.protocol": "SSL", "kafka.ssl.truststore.type": "PEM", "kafka.ssl.keystore.type": "PEM"}
    big = bytes(build_batch([Record(value=b"v" * 1000) for _ in range(1000)]))
    batches = b"".join(stamped(big, 1000 * i) for i in range(3))
    with ScriptedNode(ScriptedCluster(batches, high_watermark=3000, last_stable_offset=3000), tls=context) as node:
        options = options_of(node.bootstrap, TOPIC, **given, **(texts if as_text else files))
        assert len(rows_by_source(options)) == 3000
        unknown = options_of(
            node.bootstrap, TOPIC, **{"kafka.security.protocol": "SSL"}, kafkaConsumer__pollTimeoutMs="50"
        )
        with pytest.raises(ReadFailedError, match=r"certificate verify failed|CERTIFICATE_VERIFY_FAILED"):
            rows_by_source(unknown, [Range(TOPIC, 0, 0, 10)])


@pytest.mark.parametrize("damage", [(16, b"\x01"), (8, b"\x00\x00\x00\x02"), (61, b"\xff\xff\xff")])
def test_nonsense_is_named_with_its_place(damage: tuple[int, bytes]) -> None:
    at, what = damage
    broken = RECORDS[:at] + what + RECORDS[at + len(what) :]
    scripted = ScriptedCluster(RECORDS, high_watermark=60, last_stable_offset=60)
    scripted.part = lambda *_: part_of(broken)  # type: ignore[method-assign]
    with (
        ScriptedNode(scripted) as node,
        pytest.raises(CorruptRecordsError, match=f"topic {TOPIC}, partition 0, batch at"),
    ):
        rows_by_source(options_of(node.bootstrap, TOPIC))


def test_where_an_answer_ends() -> None:
    assert after(b"", 7) == (7, 0)
    assert after(RECORDS[:60], 7) == (7, 0)
    assert after(RECORDS, 0) == (GOLDEN["high_watermark"], len(RECORDS))
    cut = after(RECORDS[:-1], 0)
    assert 0 < cut[0] < GOLDEN["high_watermark"]
    assert cut[1] < len(RECORDS)


def stamped(batch: bytes, base_offset: int) -> bytes:
    return base_offset.to_bytes(8, "big") + batch[8:]


def part_of(records: bytes) -> PartitionData:
    return PartitionData(0, 0, 60, 60, 0, aborted_transactions=None, records=records)
