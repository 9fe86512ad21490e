"""Reads the writer's options into one value, with the names of Spark's own Kafka sink and of Kafka's producer.

It checks every option, its default and which options go together; an invalid option is refused with one sentence
(`WrongOptionError`). Producer properties without effect here are accepted, others are refused. The module asks no
broker.

Source: KafkaSourceProvider.scala, ProducerConfig.java; docs/pipelines/sink.md has the table.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from ottla.protocol.records.compression import CODECS
from ottla.spark.platform.client_properties import ClientProperties, WrongOptionError, client_properties
from ottla.spark.platform.paths import local_path

ALL = -1
STAGING_BELOW_CHECKPOINT = "ottla-sink"
IN_FLIGHT_MAX = 5
"""Number of batches of a producer and partition that a broker remembers."""
REQUEST_BYTES = 8 << 20
BATCH_BYTES = 512 << 10
"""Larger than Kafka's 16384: a task has all its rows at once, and fewer, larger batches are cheaper for all parties."""

TRANSACTION_TIMEOUT_MS = 180_000
"""Longer than the delivery time-out's default: a shorter outage of a broker does not end a micro-batch."""

OPTIONS = ("topic", "exactlyOnce", "transactional", "stagingLocation", "writeId", "includeHeaders")

_CONNECTION = ("bootstrap.servers", "client.id", "request.timeout.ms", "security.protocol")
_HONOURED_TEXT = (
    "acks enable.idempotence compression.type compression.gzip.level compression.lz4.level compression.zstd.level "
    "batch.size max.request.size delivery.timeout.ms max.block.ms max.in.flight.requests.per.connection "
    "transaction.timeout.ms "
)
_HONOURED = frozenset(_HONOURED_TEXT.split())
_WITHOUT_EFFECT_TEXT = (
    "linger.ms buffer.memory retries retry.backoff.ms retry.backoff.max.ms reconnect.backoff.ms "
    "reconnect.backoff.max.ms connections.max.idle.ms client.dns.lookup metadata.max.age.ms metadata.max.idle.ms "
    "metadata.recovery.strategy metadata.recovery.rebootstrap.trigger.ms socket.connection.setup.timeout.ms "
    "socket.connection.setup.timeout.max.ms send.buffer.bytes receive.buffer.bytes metric.reporters "
    "metrics.num.samples metrics.recording.level metrics.sample.window.ms enable.metrics.push "
    "partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms security.providers "
)
WITHOUT_EFFECT = frozenset(_WITHOUT_EFFECT_TEXT.split())
"""Accepted without effect: a task has all its rows and sends them in full batches, without a waiting time."""
_REFUSED = {
    "key.serializer": "keys are written as they come, bytes or UTF-8 text; encode them in the DataFrame",
    "value.serializer": "values are written as they come, bytes or UTF-8 text; encode them in the DataFrame",
    "partitioner.class": "use the column 'partition' for a choice of your own",
    "partitioner.ignore.keys": "use the column 'partition' for a choice of your own",
    "interceptor.classes": "interceptors could change what is written",
    "transactional.id": "use option 'transactional', which makes one for each query",
}


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of a writer. Hashable: a worker keeps its producer by this value.

    `codec` and `level` as in `records.compression`; `staging` an absolute path.
    """

    client: ClientProperties
    topic: str | None = None
    acks: int = ALL
    idempotent: bool = True
    codec: int = 0
    level: int | None = None
    batch_bytes: int = BATCH_BYTES
    record_bytes_max: int = 1 << 20
    request_bytes: int = REQUEST_BYTES
    delivery_timeout_ms: int = 120_000
    max_block_ms: int = 5_000
    in_flight_max: int = IN_FLIGHT_MAX
    exactly_once: bool = False
    transactional: bool = False
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS
    staging: str | None = None
    write_id: str | None = None


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Raises WrongOptionError."""
    given = {name.lower(): value.strip() for name, value in options.items()}
    kafka = {name.removeprefix("kafka."): value for name, value in given.items() if name.startswith("kafka.")}
    for name in kafka:
        _refuse(name)
    _refuse_misspelt(given)
    exactly_once, transactional = _delivery(given, kafka)
    acks, idempotent = _durability(kafka, exactly_once)
    codec, level = _compression(kafka)
    plain = SinkOptions(ClientProperties(""))
    largest = _whole(kafka, "max.request.size", plain.record_bytes_max, least=128)
    return SinkOptions(
        client=_client(kafka),
        topic=given.get("topic") or None,
        acks=acks,
        idempotent=idempotent,
        codec=codec,
        level=level,
        batch_bytes=_whole(kafka, "batch.size", plain.batch_bytes),
        record_bytes_max=largest,
        request_bytes=largest if "max.request.size" in kafka else plain.request_bytes,
        delivery_timeout_ms=_whole(kafka, "delivery.timeout.ms", plain.delivery_timeout_ms),
        max_block_ms=_whole(kafka, "max.block.ms", plain.max_block_ms),
        in_flight_max=_in_flight(kafka, idempotent),
        exactly_once=exactly_once,
        transactional=transactional,
        transaction_timeout_ms=_whole(kafka, "transaction.timeout.ms", plain.transaction_timeout_ms, least=1),
        staging=_staging(given) if exactly_once else None,
        write_id=_write_id(given, exactly_once),
    )


def _client(kafka: Mapping[str, str]) -> ClientProperties:
    """The connection to the cluster: the same properties as the reader's."""
    mine = {name: value for name, value in kafka.items() if name in _CONNECTION or name.startswith(("ssl.", "sasl."))}
    return client_properties({f"kafka.{name}": value for name, value in mine.items()})


def _refuse(name: str) -> None:
    if name in _REFUSED:
        raise WrongOptionError(f"Option 'kafka.{name}' is not supported: {_REFUSED[name]}.")
    known = name in _HONOURED or name in WITHOUT_EFFECT or name in _CONNECTION
    if not known and not name.startswith(("ssl.", "sasl.")):
        raise WrongOptionError(f"Option 'kafka.{name}' is not supported by this sink.")


def _refuse_misspelt(given: Mapping[str, str]) -> None:
    """Refuse misspelt options: a slip must not lose `exactlyOnce`. Other unknown options pass, because they belong to
    other parts of a query."""
    known = {name.lower(): name for name in OPTIONS}
    for name in given.keys() - known.keys():
        for close in difflib.get_close_matches(name, known, 1, 0.8):
            raise WrongOptionError(f"There is no option '{name}': did you mean '{known[close]}'?")


def _delivery(given: Mapping[str, str], kafka: Mapping[str, str]) -> tuple[bool, bool]:
    """Whether rows are written exactly once, and whether as transactions, which are that by themselves."""
    transactional = _boolean(given, "transactional")
    exactly_once = _boolean(given, "exactlyOnce", transactional)
    if transactional and not exactly_once:
        raise WrongOptionError("Option 'transactional' is exactly once: leave option 'exactlyOnce' out.")
    if "transaction.timeout.ms" in kafka and not transactional:
        raise WrongOptionError("Option 'kafka.transaction.timeout.ms' needs option 'transactional' to be true.")
    return exactly_once, transactional


def _durability(kafka: Mapping[str, str], exactly_once: bool) -> tuple[int, bool]:
    """acks, and whether batches carry sequences; Kafka's rules for the two together."""
    text = kafka.get("acks", "all").lower()
    if text not in ("all", "-1", "0", "1"):
        raise WrongOptionError(f"Option 'kafka.acks' must be all, -1, 0 or 1, not '{text}'.")
    acks = ALL if text == "all" else int(text)
    if exactly_once and acks != ALL:
        raise WrongOptionError("Option 'exactlyOnce' needs 'kafka.acks' to be all.")
    idempotent = _boolean(kafka, "enable.idempotence", acks == ALL)
    if exactly_once and not idempotent:
        raise WrongOptionError("Option 'exactlyOnce' needs 'kafka.enable.idempotence' to be true.")
    if idempotent and acks != ALL:
        raise WrongOptionError("Option 'kafka.enable.idempotence' needs 'kafka.acks' to be all.")
    return acks, idempotent


def _compression(kafka: Mapping[str, str]) -> tuple[int, int | None]:
    name = kafka.get("compression.type", "none").lower()
    if name not in CODECS:
        raise WrongOptionError(f"Option 'kafka.compression.type' must be one of {', '.join(CODECS)}, not '{name}'.")
    text = kafka.get(f"compression.{name}.level")
    if text is not None and not re.fullmatch(r"-?\d+", text):
        raise WrongOptionError(f"Option 'kafka.compression.{name}.level' must be a whole number, not '{text}'.")
    return CODECS[name], None if text is None else int(text)


def _in_flight(kafka: Mapping[str, str], idempotent: bool) -> int:
    wanted = _whole(kafka, "max.in.flight.requests.per.connection", IN_FLIGHT_MAX, least=1)
    if idempotent and wanted > IN_FLIGHT_MAX:
        raise WrongOptionError(
            f"Option 'kafka.max.in.flight.requests.per.connection' can't be above {IN_FLIGHT_MAX} for an idempotent "
            "producer: brokers remember no more."
        )
    return wanted


def _staging(given: Mapping[str, str]) -> str:
    """The directory in which batches wait for their commit: the option's, or one below the checkpoint."""
    wanted, checkpoint = given.get("staginglocation"), given.get("checkpointlocation")
    if wanted:
        return _local(wanted, "stagingLocation")
    if checkpoint:
        return os.path.join(_local(checkpoint, "checkpointLocation"), STAGING_BELOW_CHECKPOINT)
    raise WrongOptionError(
        "Option 'exactlyOnce' needs a directory that the driver and all executors share: give option 'stagingLocation' "
        "(or 'checkpointLocation' on the same writer, below which it is then made)."
    )


def _local(text: str, name: str) -> str:
    local = local_path(text)
    if local is not None:
        return os.path.abspath(local)
    raise WrongOptionError(
        f"Option '{name}' is {text}, but batches are staged in a directory that driver and executors see as a local "
        "path (a disk they share, NFS): give option 'stagingLocation' as such a path or file: URI."
    )


def _write_id(given: Mapping[str, str], exactly_once: bool) -> str | None:
    text = given.get("writeid")
    if text is None:
        return None
    if not exactly_once:
        raise WrongOptionError("Option 'writeId' needs option 'exactlyOnce' to be true.")
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,100}", text) or text.startswith("."):
        raise WrongOptionError(f"Option 'writeId' must consist of letters, digits, '.', '_' and '-', not '{text}'.")
    return text


def _whole(kafka: Mapping[str, str], name: str, default: int, least: int = 0) -> int:
    text = kafka.get(name)
    if text is None:
        return default
    if not re.fullmatch(r"\d+", text) or not least <= int(text) < 1 << 31:
        raise WrongOptionError(
            f"Option 'kafka.{name}' must be a whole number of {least} to {(1 << 31) - 1}, not '{text}'."
        )
    return int(text)


def _boolean(given: Mapping[str, str], name: str, default: bool = False) -> bool:
    text = given.get(name.lower(), str(default)).lower()
    if text not in ("true", "false"):
        raise WrongOptionError(f"Option '{name}' must be true or false, not '{text}'.")
    return text == "true"
