"""Share groups over TCP: librdkafka's ShareConsumer, and our thin client where it can't say what is to be tested."""

import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, Message, Producer, ShareConsumer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from ottla.client import Client
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import share_acknowledge as said
from ottla.protocol.messages import share_fetch as asked
from ottla.testing import EmbeddedBroker
from tools.node_process import NodeProcess

ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT


def configure(address: str, group: str, **configs: str) -> None:
    """Set a group's configs as any Kafka client would."""
    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in {"share_auto_offset_reset": "earliest", **configs}.items()
    ]
    admin = AdminClient({"bootstrap.servers": address, "log_level": 3})
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)


def produce(address: str, topic: str, values: list[bytes], headers: Any = None, batch: int = 10_000) -> None:
    producer = Producer({"bootstrap.servers": address, "linger.ms": 5, "log_level": 3, "batch.num.messages": batch})
    for value in values:
        producer.produce(topic, value, key=b"k", headers=headers)
    assert producer.flush(30) == 0


class Worker:
    """A member of a share group in this thread, always closed."""

    def __init__(self, address: str, group: str, *topics: str, explicit: bool = False, **settings: Any) -> None:
        mode = {"share.acknowledgement.mode": "explicit"} if explicit else {}
        given = {name.replace("_", "."): value for name, value in settings.items()}
        self.member = ShareConsumer({"bootstrap.servers": address, "group.id": group, "log_level": 3, **mode, **given})
        self.member.subscribe(list(topics))
        self._implicit = not explicit

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        if self._implicit:
            self.member.commit_sync(30)  # close() does not accept the last poll's records, against any broker
        self.member.close()

    def take(self, count: int, patience_s: float = 30.0) -> list[Message]:
        """Poll until there are so many records, or none came for so long."""
        got: list[Message] = []
        until = time.monotonic() + patience_s
        while len(got) < count and time.monotonic() < until:
            got += [message for message in self.member.poll(0.2) if not message.error()]
        return got

    def acknowledge(self, messages: list[Message], kind: AcknowledgeType) -> dict[Any, Any]:
        for message in messages:
            self.member.acknowledge(message, kind)
        return self.member.commit_sync(30)


@pytest.fixture
def group() -> str:
    return f"g-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def address(broker: EmbeddedBroker) -> str:
    return broker.bootstrap_servers


def values(messages: list[Message]) -> list[int]:
    return sorted(int(message.value() or b"") for message in messages)


def numbers(first: int, end: int) -> list[bytes]:
    return [str(i).encode() for i in range(first, end)]


# ---- librdkafka ----------------------------------------------------------------------------------------------------


def test_the_first_record_comes_at_once(address: str, make_topic: Callable[..., str], group: str) -> None:
    topic = make_topic()
    configure(address, group, share_heartbeat_interval_ms="15000")
    produce(address, topic, numbers(0, 10))
    began = time.monotonic()
    with Worker(address, group, topic) as worker:
        assert values(worker.take(10)) == list(range(10))
    assert time.monotonic() - began < 14, "Kafka needs fifteen seconds to its second heartbeat"


def test_implicitly_acknowledged_records_never_come_again(
    address: str, make_topic: Callable[..., str], group: str
) -> None:
    topic = make_topic(3)
    configure(address, group)
    produce(address, topic, numbers(0, 5000))
    with Worker(address, group, topic) as worker:
        assert values(worker.take(5000)) == list(range(5000))
    with Worker(address, group, topic) as worker:
        assert worker.take(1, 1.0) == []
        produce(address, topic, numbers(5000, 5010))
        assert values(worker.take(10)) == list(range(5000, 5010))


def test_many_members_share_one_partition(
    address: str, make_topic: Callable[..., str], group: str, deaths: Callable[[], int]
) -> None:
    topic = make_topic()
    died = deaths()
    configure(address, group)
    seen: Counter[int] = Counter()
    took: Counter[int] = Counter()
    done = Event()

    def work(number: int) -> None:
        with Worker(address, group, topic, max_poll_records=10) as worker:
            while not done.is_set():
                batch = [m for m in worker.member.poll(0.1) if not m.error()]
                took[number] += len(batch)
                seen.update(values(batch))
                time.sleep(0.005)
                if len(seen) == 2000:
                    done.set()

    threads = [Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for i in range(0, 2000, 20):
        produce(address, topic, numbers(i, i + 20))
    assert done.wait(180)
    for thread in threads:
        thread.join()
    assert sorted(seen) == list(range(2000))
    if deaths() == died:
        assert max(seen.values()) == 1, "nobody failed, so nothing came twice"
    assert len(took) == 6
    assert min(took.values()) > 0


def test_accept_release_reject(address: str, make_topic: Callable[..., str], group: str) -> None:
    topic = make_topic()
    configure(address, group)
    produce(address, topic, numbers(0, 9))
    with Worker(address, group, topic, explicit=True) as worker:
        first = sorted(worker.take(9), key=lambda m: m.offset() or 0)
        assert {m.delivery_count() for m in first} == {1}
        for message, kind in zip(first, (ACCEPT, RELEASE, REJECT) * 3, strict=True):
            worker.member.acknowledge(message, kind)
        assert all(error is None for error in worker.member.commit_sync(30).values())
        again = worker.take(3)
        assert values(again) == [1, 4, 7]
        assert {m.delivery_count() for m in again} == {2}
        worker.acknowledge(again, ACCEPT)
        assert worker.take(1, 1.0) == []


def test_a_record_released_too_often_is_dropped(address: str, make_topic: Callable[..., str], group: str) -> None:
    topic = make_topic()
    configure(address, group, share_delivery_count_limit="3")
    produce(address, topic, [b"0"])
    with Worker(address, group, topic, explicit=True) as worker:
        for attempt in range(1, 4):
            (message,) = worker.take(1)
            assert message.delivery_count() == attempt
            worker.acknowledge([message], RELEASE)
        assert worker.take(1, 1.5) == []


def test_what_a_closed_member_held_goes_to_another(address: str, make_topic: Callable[..., str], group: str) -> None:
    topic = make_topic()
    configure(address, group)
    produce(address, topic, numbers(0, 6))
    with Worker(address, group, topic, explicit=True) as first:
        held = first.take(6)
        first.acknowledge([m for m in held if int(m.value() or b"") < 2], ACCEPT)
    with Worker(address, group, topic) as second:
        assert values(second.take(4)) == [2, 3, 4, 5]


def test_a_dead_members_records_come_back_quickly(
    address: str, make_topic: Callable[..., str], group: str, tmp_path: Path
) -> None:
    topic = make_topic()
    configure(address, group, share_record_lock_duration_ms="60000")
    produce(address, topic, numbers(0, 6))
    code = (
        "import sys, time\nfrom confluent_kafka import ShareConsumer\n"
        "m = ShareConsumer({'bootstrap.servers': sys.argv[1], 'group.id': sys.argv[2],"
        " 'share.acknowledgement.mode': 'explicit'})\n"
        "m.subscribe([sys.argv[3]])\ngot = 0\n"
        "while got < 6:\n    got += len([x for x in m.poll(0.2) if not x.error()])\n"
        "print('held', flush=True)\ntime.sleep(60)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, address, group, topic], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        child.send_signal(signal.SIGKILL)
        child.wait()
        began = time.monotonic()
        with Worker(address, group, topic) as other:
            again = other.take(6, 60.0)
            assert values(again) == list(range(6))
            assert {m.delivery_count() for m in again} == {2}
        assert time.monotonic() - began < 45, "long before the lock would have run out"
    finally:
        child.kill()
        child.wait()


def test_rejected_records_become_dead_letters(address: str, make_topic: Callable[..., str], group: str) -> None:
    topic = make_topic()
    letters = f"dlq.{topic}"
    admin = AdminClient({"bootstrap.servers": address, "log_level": 3})
    enabled = {"errors.deadletterqueue.group.enable": "true"}
    admin.create_topics([NewTopic(letters, 1, 1, config=enabled)])[letters].result(30)
    configure(address, group, errors_deadletterqueue_topic_name=letters)
    configure(address, f"{group}-letters")
    produce(address, topic, numbers(0, 3), headers=[("trace", b"t")])
    with Worker(address, group, topic, explicit=True) as worker:
        worker.acknowledge(worker.take(3), REJECT)
    with Worker(address, f"{group}-letters", letters) as reader:
        found = reader.take(3)
    assert values(found) == [0, 1, 2]
    headers = dict(found[0].headers() or [])
    assert headers["trace"] == b"t"
    assert headers["__dlq.errors.topic"] == topic.encode()
    assert headers["__dlq.errors.group"] == group.encode()


def test_back_off_delays_the_next_delivery(address: str, make_topic: Callable[..., str], group: str) -> None:
    topic = make_topic()
    configure(address, group, share_retry_backoff_ms="1500")
    produce(address, topic, [b"0"])
    with Worker(address, group, topic, explicit=True) as worker:
        released = worker.acknowledge(worker.take(1), RELEASE)
        began = time.monotonic()
        again = worker.take(1)
        assert time.monotonic() - began > 1.3 or any(released.values()), "what was not released in time comes at once"
        worker.acknowledge(again, ACCEPT)


def test_delayed_messages_wait(address: str, make_topic: Callable[..., str], group: str) -> None:
    topic = make_topic()
    configure(address, group, share_delayed_delivery_enable="true")
    began = time.monotonic()
    produce(address, topic, [b"0"], headers=[("ottla-delay-ms", b"2000")])
    produce(address, topic, [b"1"])
    with Worker(address, group, topic) as worker:
        assert values(worker.take(1)) == [1]
        assert values(worker.take(1)) == [0]
    assert time.monotonic() - began > 1.5


def test_a_paused_group_rests(address: str, make_topic: Callable[..., str], group: str) -> None:
    topic = make_topic()
    configure(address, group, share_delivery_paused="true")
    produce(address, topic, numbers(0, 3))
    with Worker(address, group, topic) as worker:
        assert worker.take(1, 1.5) == []
        configure(address, group, share_delivery_paused="false")
        assert values(worker.take(3)) == [0, 1, 2]


def test_state_survives_a_restart(group: str) -> None:
    with EmbeddedBroker() as broker:
        address = broker.bootstrap_servers
        broker.create_topic("jobs")
        configure(address, group)
        produce(address, "jobs", numbers(0, 6))
        with Worker(address, group, "jobs", explicit=True) as worker:
            held = sorted(worker.take(6), key=lambda m: m.offset() or 0)
            worker.acknowledge(held[:3], ACCEPT)
            worker.acknowledge(held[3:4], RELEASE)
        broker.restart()
        with Worker(broker.bootstrap_servers, group, "jobs") as worker:
            again = worker.take(3)
            assert values(again) == [3, 4, 5]
            assert {int(m.value() or b""): m.delivery_count() for m in again}[3] == 2


# ---- kill -9 -------------------------------------------------------------------------------------------------------


@pytest.fixture
def served(tmp_path: Path) -> Iterator[NodeProcess]:
    node = NodeProcess(tmp_path / "data")
    node.start()
    yield node
    if node.alive:
        node.kill()


def test_what_was_accepted_survives_kill_9_again_and_again(served: NodeProcess, group: str) -> None:
    """Every record is processed, and none again after its acceptance was confirmed."""
    admin = AdminClient({"bootstrap.servers": served.bootstrap, "log_level": 3})
    admin.create_topics([NewTopic("jobs", 1, 1)])["jobs"].result(30)
    configure(served.bootstrap, group)
    total = 3000
    produce(served.bootstrap, "jobs", numbers(0, total), batch=20)
    accepted: set[int] = set()
    done = Event()

    def work() -> None:
        with Worker(
            served.bootstrap, group, "jobs", explicit=True, max_poll_records=20, reconnect_backoff_max_ms=200
        ) as worker:
            while not done.is_set():
                batch = [m for m in worker.member.poll(0.2) if not m.error()]
                time.sleep(0.02)
                again = [(m.offset(), m.delivery_count()) for m in batch if int(m.value() or b"") in accepted]
                assert not again, f"confirmed records came again: offsets and delivery counts {again}"
                if batch:
                    for message in batch:
                        worker.member.acknowledge(message, ACCEPT)
                    if all(error is None for error in worker.member.commit_sync(30).values()):
                        accepted.update(values(batch))
                if len(accepted) == total:
                    done.set()

    failures: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)
            done.set()

    thread = Thread(target=guarded, daemon=True)
    thread.start()
    for _ in range(4):
        if done.wait(0.7):
            break
        served.kill()
        served.start()
    assert done.wait(120), f"{len(accepted)} of {total} accepted"
    thread.join()
    assert not failures, failures
    assert accepted == set(range(total))


# ---- what librdkafka can't say -------------------------------------------------------------------------------------


class Thin:
    """A member on our own client: version 2."""

    def __init__(self, client: Client, topic: str, group: str) -> None:
        self.connection = client.leader(topic, 0)
        self.topic_id = client.topic(topic).topic_id
        self.group, self.name, self.epoch = group, uuid.uuid4().hex, 0

    def fetch(self, *acks: tuple[int, int, list[int]], records: int = 500, mode: int = 0) -> Any:
        part = asked.FetchPartition(0, [asked.AcknowledgementBatch(*ack) for ack in acks])
        topics = [asked.FetchTopic(self.topic_id, [part])]
        request = asked.ShareFetchRequest(
            self.group, self.name, self.epoch, 300, 1, 1 << 20, records, records, mode, False, topics
        )
        self.epoch += 1
        answer = self.connection.send(request, 2)
        assert answer.error_code == 0, answer
        return answer

    def ranges(self, *args: Any, **how: Any) -> list[tuple[int, int, int]]:
        parts = [part for topic in self.fetch(*args, **how).responses for part in topic.partitions]
        assert all(part.records is not None for part in parts), "librdkafka refuses null records"
        return [(r.first_offset, r.last_offset, r.delivery_count) for part in parts for r in part.acquired_records]

    def renew(self, first: int, last: int) -> int:
        part = said.AcknowledgePartition(0, [said.AcknowledgementBatch(first, last, [4])])
        topics = [said.AcknowledgeTopic(self.topic_id, [part])]
        request = said.ShareAcknowledgeRequest(self.group, self.name, self.epoch, True, topics)
        self.epoch += 1
        answer = self.connection.send(request, 2)
        assert answer.error_code == 0
        assert answer.acquisition_lock_timeout_ms > 0
        return answer.responses[0].partitions[0].error_code


def test_renewing_and_record_limits_in_version_2(address: str, make_topic: Callable[..., str], group: str) -> None:
    topic = make_topic()
    configure(address, group)
    produce(address, topic, numbers(0, 20))
    with ExitStack() as stack:
        one, two = (Thin(stack.enter_context(Client(address)), topic, group) for _ in range(2))
        assert one.ranges(records=3, mode=1) == [(0, 2, 1)]
        assert one.renew(0, 2) == 0
        assert one.renew(3, 4) in (ErrorCode.INVALID_RECORD_STATE, ErrorCode.INVALID_REQUEST)
        assert two.ranges(records=4, mode=1) == [(3, 6, 1)]
        assert two.renew(0, 2) == ErrorCode.INVALID_RECORD_STATE
        assert one.ranges((0, 2, [1, 2, 1]), records=2, mode=1) == [(1, 1, 2), (7, 7, 1)]
