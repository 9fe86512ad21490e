"""Topics, records, configurations and transactions, asked as every kind of principal (`principals`)."""

from __future__ import annotations

from typing import Any

from ottla.protocol.apis import ApiKey as K

from ..batches import batch
from ..principals import UNKNOWN_ID, Matrix, of_own
from ..stage import Stage, fetch, produce
from .transactions import Producer

SECURED = True
TOPIC, BROKER, GROUP = 2, 4, 32


def records(s: Stage) -> None:
    m = Matrix(s, "records")
    topics = m.topics()
    shown, hidden = s.topic_id(m.shown("t")), s.topic_id(m.hidden("t"))
    ids = (shown, hidden, UNKNOWN_ID)
    of_name = [{"name": name, "partition_data": [{"index": 0, "records": batch("v")}]} for name in topics]
    of_id = [{"topic_id": each, "partition_data": [{"index": 0, "records": batch("v")}]} for each in ids]
    m.ask(K.PRODUCE, "by name", 9, keep=no_offsets)(acks=-1, timeout_ms=10_000, topic_data=of_name)
    m.ask(K.PRODUCE, "by id", keep=no_offsets)(acks=-1, timeout_ms=10_000, topic_data=of_id)
    m.ask(K.PRODUCE, "one hidden", 9, keep=no_offsets)(**produce(m.hidden("t"), batch("v")))
    Producer(s, "a.tx")
    transactional = batch("v", producer=(999, 0, 0), attributes=0x10)
    for name in ("tx", "none"):
        asked = {"transactional_id": m.hidden(name) if name == "none" else m.shown(name)}
        m.ask(K.PRODUCE, f"in a transaction {name}", 9)(**asked, **produce(m.shown("t"), transactional))
    m.ask(K.PRODUCE, "idempotent", 9)(**produce(m.shown("t"), batch("v", producer=(998, 0, 0))))
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    how = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1 << 24}
    for step, version, wanted in (
        ("by name", 12, [{"topic": name, "partitions": [part]} for name in topics]),
        ("by id", None, [{"topic_id": each, "partitions": [part]} for each in ids]),
    ):
        m.ask(K.FETCH, step, version, keep=no_records)(**how, topics=wanted)
    m.ask(K.FETCH, "as a replica", 12, keep=no_records)(replica_id=7, **fetch(m.shown("t")))
    m.ask(K.LIST_OFFSETS, "four")(
        topics=[{"name": name, "partitions": [{"partition_index": 0, "timestamp": -2}]} for name in topics]
    )
    m.ask(K.DELETE_RECORDS, "four")(
        topics=[{"name": name, "partitions": [{"partition_index": 0, "offset": 0}]} for name in topics]
    )
    epochs = [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]
    m.ask(K.OFFSET_FOR_LEADER_EPOCH, "four", keep=no_offsets)(
        topics=[{"topic": name, "partitions": epochs} for name in topics]
    )
    m.ask(K.DESCRIBE_PRODUCERS, "four")(topics=[{"name": name, "partition_indexes": [0]} for name in topics])


def topics(s: Stage) -> None:
    m = Matrix(s, "topics", "new", "doomed", "doomed2", "grown", "born")
    names = m.topics()
    shown, hidden = s.topic_id(m.shown("t")), s.topic_id(m.hidden("t"))
    ids = [{"topic_id": each, "name": None} for each in (shown, hidden, UNKNOWN_ID)]
    four = [{"name": name} for name in names]
    quiet = {"allow_auto_topic_creation": False}
    operations = {"include_topic_authorized_operations": True, "include_cluster_authorized_operations": True}
    m.ask(K.METADATA, "by name", keep=brokers_left_out)(topics=four, **quiet)
    m.ask(K.METADATA, "by name, operations", 10, keep=brokers_left_out)(topics=four, **quiet, **operations)
    m.ask(K.METADATA, "by id", keep=brokers_left_out)(topics=ids, **quiet)
    m.ask(K.METADATA, "all", keep=brokers_left_out, ours=True)(topics=None, include_topic_authorized_operations=True)
    m.ask(K.METADATA, "all, as once", 0, keep=brokers_left_out, ours=True)(topics=[])
    m.ask(K.METADATA, "to be created", 9, keep=brokers_left_out)(
        lambda who: {"topics": [{"name": s.name(of_own("a.born", who))}, {"name": m.hidden(f"born.{who}")}]}
    )
    s.settle()
    s.settle()
    m.ask(K.DESCRIBE_TOPIC_PARTITIONS, "four")(topics=four)
    m.ask(K.DESCRIBE_TOPIC_PARTITIONS, "all", ours=True)(topics=[])

    def creating(who: str, *more: str, **how: Any) -> dict[str, Any]:
        wanted = [s.name(of_own("a.new", who)), m.hidden("t"), m.shown("t"), *more]
        return {"topics": [{"name": each, "num_partitions": 1, "replication_factor": 1} for each in wanted]} | how

    m.ask(K.CREATE_TOPICS, "validated", keep=without_configs)(lambda who: creating(who, validate_only=True))
    m.ask(K.CREATE_TOPICS, "made", keep=without_configs)(lambda who: creating(who))
    owners = [who for who, _ in m.principals.who(m.specs[K.DELETE_TOPICS])]
    for who in owners:
        for short in ("a.doomed", "a.doomed2"):
            s.create(of_own(short, who))
    m.ask(K.DELETE_TOPICS, "by name", 5)(
        lambda who: {"topic_names": [s.name(of_own("a.doomed", who)), *names[2:]], "timeout_ms": 10_000}
    )
    m.ask(K.DELETE_TOPICS, "hidden", 5)(lambda who: {"topic_names": [m.hidden("none")], "timeout_ms": 10_000})
    m.ask(K.DELETE_TOPICS, "by id")(
        lambda who: {
            "topics": [
                {"topic_id": s.topic_id(s.name(of_own("a.doomed2", who))), "name": None},
                {"topic_id": UNKNOWN_ID, "name": None},
            ],
            "timeout_ms": 10_000,
        }
    )
    m.ask(K.CREATE_PARTITIONS, "four")(
        topics=[{"name": name, "count": 3, "assignments": None} for name in names],
        timeout_ms=10_000,
        validate_only=True,
    )


def configs(s: Stage) -> None:
    m = Matrix(s, "configs")
    topics, node = m.topics(), str(s.node_id)
    resources = [(TOPIC, name) for name in topics]
    resources += [(GROUP, m.shown("g")), (GROUP, m.hidden("g")), (BROKER, node), (BROKER, "")]

    def asked(**more: Any) -> list[dict[str, Any]]:
        return [{"resource_type": kind, "resource_name": name, **more} for kind, name in resources]

    m.ask(K.DESCRIBE_CONFIGS, "each", keep=one_line_each)(resources=asked(configuration_keys=["flush.ms"]))
    for key, more in ((K.ALTER_CONFIGS, {}), (K.INCREMENTAL_ALTER_CONFIGS, {"config_operation": 0})):
        values: dict[int, dict[str, Any]] = {
            TOPIC: {"name": "flush.ms", "value": "7"},
            GROUP: {"name": "consumer.session.timeout.ms", "value": "45000"},
            BROKER: {"name": "log.cleaner.threads", "value": "1"},
        }
        changes = [{**each, "configs": [values[each["resource_type"]] | more]} for each in asked()]
        if key is K.ALTER_CONFIGS:  # without the cluster's defaults, of which Kafka keeps some for ever
            changes.pop()
        m.ask(key, "each, validated")(resources=changes, validate_only=True)
    m.ask(K.LIST_CONFIG_RESOURCES, "topics", ours=True)(resource_types=[TOPIC])


def transactions(s: Stage) -> None:
    m = Matrix(s, "transactions", "begun")
    topics = m.topics()
    for name in ("a.tx", "z.tx"):
        Producer(s, name).add(m.shown("t"), 0)
    both = Producer(s, "a.made")
    both.add(m.shown("t"), 0)
    both.add(m.hidden("t"), 0)
    s.group("a.g")
    s.group("z.g")
    timeout = {"transaction_timeout_ms": 60_000}
    m.ask(K.INIT_PRODUCER_ID, "in transactions", keep=without_producer)(
        lambda who: {"transactional_id": s.name(of_own("a.begun", who)), **timeout}
    )
    m.ask(K.INIT_PRODUCER_ID, "of a hidden one", keep=without_producer)(transactional_id=m.hidden("none"), **timeout)
    m.ask(K.INIT_PRODUCER_ID, "idempotent", keep=without_producer)(transactional_id=None, **timeout)
    unknown = {"producer_id": 123_456, "producer_epoch": 3}
    old = {f"v3_and_below_{name}": value for name, value in unknown.items()}
    partitions = [{"name": name, "partitions": [0]} for name in topics]
    for step, name in (("granted", m.shown("tx")), ("hidden", m.hidden("tx"))):
        of = {"transactional_id": name, **unknown}
        for what, some in (("four topics", partitions), ("one topic", partitions[:1])):
            m.ask(K.ADD_PARTITIONS_TO_TXN, f"{step}, {what}", 3)(
                v3_and_below_transactional_id=name, v3_and_below_topics=some, **old
            )
        for group in ("a.g", "z.g"):
            m.ask(K.ADD_OFFSETS_TO_TXN, f"{step}, {group}")(**of, group_id=s.name(group))
            rows = [{"name": each, "partitions": [{"partition_index": 0, "committed_offset": 1}]} for each in topics]
            m.ask(K.TXN_OFFSET_COMMIT, f"{step}, {group}", 4)(**of, group_id=s.name(group), topics=rows)
        m.ask(K.END_TXN, step, 4)(**of, committed=True)
    several = [
        {"transactional_id": each, "verify_only": True, "topics": partitions, **unknown} for each in m.four("tx")
    ]
    m.ask(K.ADD_PARTITIONS_TO_TXN, "as a node")(transactions=several)
    marked = [{"name": m.shown("none"), "partition_indexes": [0]}]
    m.ask(K.WRITE_TXN_MARKERS, "of an unknown topic")(
        markers=[{"producer_id": 123_456, "producer_epoch": 0, "transaction_result": False, "topics": marked}]
    )
    m.ask(K.DESCRIBE_TRANSACTIONS, "five", keep=transactions_that_stay)(
        transactional_ids=[*m.four("tx"), m.shown("made")]
    )
    m.ask(K.LIST_TRANSACTIONS, "all", ours=True, keep=transactions_that_stay)()


def transactions_that_stay(answer: dict[str, Any]) -> dict[str, Any]:
    """Those of the scenario, and not those of the principals."""
    states = answer.get("transaction_states", [])
    found = [each for each in states if each["transactional_id"].split(".")[1] in ("tx", "none", "made")]
    found.sort(key=lambda each: str(each["transactional_id"]))
    return answer | {"transaction_states": found}


def without_producer(answer: dict[str, Any]) -> dict[str, Any]:
    return {"error_code": answer["error_code"]}


# ---- what is kept of answers ---------------------------------------------------------------------------------------


def no_offsets(answer: Any) -> Any:
    """Without offsets, which grow with every principal that may produce."""
    match answer:
        case dict():
            left_out = ("base_offset", "end_offset")
            return {name: no_offsets(value) for name, value in answer.items() if name not in left_out}
        case list():
            return [no_offsets(item) for item in answer]
        case _:
            return answer


def no_records(answer: Any) -> Any:
    """With the number of batches where there are records, and without offsets of the end."""
    match answer:
        case dict():
            left_out = ("high_watermark", "last_stable_offset", "session_id")
            kept = {name: no_records(value) for name, value in answer.items() if name not in left_out}
            return kept | ({"records": "some"} if answer.get("records") else {})
        case list():
            return [no_records(item) for item in answer]
        case _:
            return answer


def brokers_left_out(answer: dict[str, Any]) -> dict[str, Any]:
    left_out = ("brokers", "controller_id", "cluster_id")
    return {name: value for name, value in answer.items() if name not in left_out}


def without_configs(answer: dict[str, Any]) -> dict[str, Any]:
    """How many configs a topic has is compared elsewhere: here, whether they are shown."""
    for topic in answer["topics"]:
        topic.pop("topic_id", None)
        if topic.get("configs"):
            topic["configs"] = "some"
    return answer


def one_line_each(answer: dict[str, Any]) -> dict[str, Any]:
    for result in answer["results"]:
        result["configs"] = [each["name"] for each in result.get("configs") or []]
    return answer
