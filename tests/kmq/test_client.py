"""The worker's client against a real broker: the order of its steps, what it says of messages, how it takes trouble."""

import asyncio
import threading
import time
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.kmq import AsyncKmqClient, KmqClient, KmqConfig, KmqRefusedError, create_topics
from ottla.kmq.markers import END, Kind, pack_key, start

from .conftest import PATIENCE_S, QUICK, QueueStage, take, until


def test_messages_are_marked_and_ended_each_by_itself(stage: QueueStage) -> None:
    stage.send(b"a", b"b", b"c")
    with stage.client() as client:
        messages = take(client, 3)
        assert [each.value() for each in messages] == [b"a", b"b", b"c"]
        client.processed(messages[2])
        client.processed(messages[0])
    plain = start(1_000)
    assert stage.markers() == [
        (pack_key(0, 0), plain),
        (pack_key(0, 1), plain),
        (pack_key(0, 2), plain),
        (pack_key(0, 2), END),
        (pack_key(0, 0), END),
    ]
    assert stage.committed(stage.config.queue, stage.config.group_id) == 3


def test_start_markers_are_there_before_a_batch_is_handed_out(stage: QueueStage) -> None:
    stage = stage.with_(batch_size=2)
    stage.send(*(b"%d" % index for index in range(20)))
    with stage.client() as client:
        seen = 0
        while seen < 20:
            for message in client.next_batch():
                seen += 1
                assert pack_key(0, message.offset()) in [key for key, _ in stage.markers()]


def test_the_next_batch_is_read_ahead_but_not_committed(stage: QueueStage) -> None:
    stage = stage.with_(batch_size=2, timeout_ms=60_000)
    stage.send(*(b"%d" % index for index in range(8)))
    client = stage.client()
    while not (batch := client.next_batch(0.1)):
        pass
    assert [each.offset() for each in batch] == [0, 1]
    for message in client.next_batch():
        assert message.offset() in (2, 3)
    until(lambda: len(stage.markers()) == 6, "the start markers of the third batch are written")
    until(lambda: stage.committed(stage.config.queue, stage.config.group_id) == 4, "two batches are committed")
    client.close()
    with stage.client() as other:
        assert [each.offset() for each in take(other, 4)] == [4, 5, 6, 7]


def test_nothing_is_read_ahead_while_work_is_slow(stage: QueueStage) -> None:
    stage = stage.with_(batch_size=2, timeout_ms=500)
    stage.send(*(b"%d" % index for index in range(8)))
    with stage.client() as client:
        while not client.next_batch(0.1):
            pass
        for _ in range(2):
            time.sleep(0.1)
            assert len(client.next_batch()) == 2
        time.sleep(0.1)
        assert len(stage.markers()) == 6


def test_more_is_said_of_messages_in_markers_that_the_original_reads(stage: QueueStage) -> None:
    stage.send(b"a", b"b", b"c", b"d")
    with stage.client() as client:
        extended, longer, failed, rejected = take(client, 4)
        client.extend(extended)
        client.extend(longer, 5_000)
        client.failed(failed, delay_ms=700, reason="boom")
        client.reject(rejected, reason="poison")
    assert stage.markers()[4:] == [
        (pack_key(0, 0), start(1_000, Kind.EXTEND)),
        (pack_key(0, 1), start(5_000, Kind.EXTEND)),
        (pack_key(0, 2), start(700, Kind.FAILED, "boom")),
        (pack_key(0, 3), start(0, Kind.REJECTED, "poison")),
    ]


def test_a_message_may_have_a_time_out_of_its_own(stage: QueueStage) -> None:
    def own(message: Any) -> int:
        return int(dict(message.headers() or [])["timeout-ms"])

    stage.send(b"a", headers={"timeout-ms": b"1500"})
    stage.send(b"b", headers={"timeout-ms": b"900000"})
    with stage.client(timeout_ms_of=own) as client:
        client.extend(take(client, 2)[1])
    assert [value for _, value in stage.markers()] == [start(1_500), start(900_000), start(900_000, Kind.EXTEND)]


def test_messages_without_a_time_out_come_again_once_it_can_be_told(stage: QueueStage) -> None:
    """What the caller's function raises must not lose the batch."""
    broken = True

    def own(message: Any) -> int:
        if broken and message.value() == b"b":
            raise LookupError("no time-out")
        return 1_000

    stage.send(b"a", b"b", b"c")
    with stage.client(timeout_ms_of=own) as client:
        with pytest.raises(LookupError):
            take(client, 3)
        broken = False
        assert [each.value() for each in take(client, 3)] == [b"a", b"b", b"c"]


def test_messages_are_ended_from_many_threads(stage: QueueStage) -> None:
    stage = stage.with_(timeout_ms=60_000)
    stage.send(*(b"%d" % index for index in range(400)))
    with stage.client() as client:
        messages = take(client, 400)
        threads = [
            threading.Thread(target=lambda part: [client.processed(each) for each in part], args=(messages[at::8],))
            for at in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    ended = {key for key, value in stage.markers() if value == END}
    assert ended == {pack_key(0, offset) for offset in range(400)}


def test_without_their_markers_messages_are_not_handed_out(stage: QueueStage) -> None:
    stage.send(b"a", b"b")
    with stage.client() as client:
        stage.alter(stage.config.markers, "max.message.bytes", "10")
        with pytest.raises(KafkaException, match="MSG_SIZE_TOO_LARGE"):
            take(client, 2)
        assert stage.committed(stage.config.queue, stage.config.group_id) < 0
        stage.alter(stage.config.markers, "max.message.bytes", "100000")
        found: list[bytes | None] = []

        def again() -> bool:
            try:
                found.extend(each.value() for each in client.next_batch(0.1))
            except KafkaException:
                assert not found
            return len(found) == 2

        until(again, "both messages are handed out")
        assert found == [b"a", b"b"]
    assert [key for key, _ in stage.markers()] == [pack_key(0, 0), pack_key(0, 1)]


def test_topics_that_do_not_fit_are_refused_with_a_sentence(stage: QueueStage) -> None:
    admin, queue = AdminClient(stage.properties), stage.config.queue
    with pytest.raises(KmqRefusedError, match=r"^There is no topic nowhere\.$"):
        KmqClient(stage.properties, KmqConfig(queue="nowhere"))
    with pytest.raises(
        KmqRefusedError, match=f"^The queue {queue} has no topic other: `ottla kmq create {queue}` makes"
    ):
        KmqClient(stage.properties, KmqConfig(queue=queue, markers="other"))
    admin.create_topics([NewTopic(f"{queue}-3", 3, 1)])[f"{queue}-3"].result(PATIENCE_S)
    with pytest.raises(
        KmqRefusedError, match=f"^{queue}-3 has 3 partitions and {stage.config.markers} has 1: they must"
    ):
        KmqClient(stage.properties, KmqConfig(queue=f"{queue}-3", markers=stage.config.markers))
    with pytest.raises(KmqRefusedError, match="three different topics"):
        KmqConfig(queue="a", markers="a")
    with pytest.raises(KmqRefusedError, match="two different groups"):
        KmqConfig(queue="a", group_id="g", tracker_group_id="g")
    with pytest.raises(KmqRefusedError, match="timeout_ms must be at least 1, not 0"):
        KmqConfig(queue="a", timeout_ms=0)


def test_two_workers_share_the_partitions_and_lose_nothing_between_them(stage: QueueStage) -> None:
    queue = f"{stage.config.queue}-2"
    shared = stage.with_(queue=queue, markers="", dead_letters="", group_id="", tracker_group_id="", batch_size=7)
    create_topics(AdminClient(stage.properties), shared.config, partitions=2)
    seen: set[bytes | None] = set()

    def work(client: KmqClient) -> None:
        for message in client.next_batch(0.05):
            seen.add(message.value())
            client.processed(message)

    shared.send(*(b"0-%d" % index for index in range(200)), partition=0)
    with shared.client() as one:
        work(one)
        with shared.client() as two:
            shared.send(*(b"1-%d" % index for index in range(200)), partition=1)
            began = time.monotonic()
            while len(seen) < 400 and time.monotonic() - began < PATIENCE_S:
                work(one)
                work(two)
    assert seen == {b"%d-%d" % (partition, index) for partition in (0, 1) for index in range(200)}
    opened: dict[bytes | None, bool] = {}
    for key, value in shared.markers():
        opened[key] = value != END
    assert len(opened) == 400
    assert not any(opened.values())


async def test_the_asyncio_client_does_the_same(stage: QueueStage) -> None:
    stage = stage.with_(timeout_ms=30_000, batch_size=3)
    stage.send(*(b"%d" % index for index in range(10)))
    done: list[bytes | None] = []

    async def work(client: AsyncKmqClient, message: Any) -> None:
        await asyncio.sleep(0)
        client.processed(message)
        done.append(message.value())

    async with AsyncKmqClient(stage.properties, stage.config, consumer=QUICK) as client, asyncio.TaskGroup() as group:
        count = 0
        async for message in client.messages():
            group.create_task(work(client, message))
            count += 1
            if count == 10:
                break
    assert sorted(done) == [b"%d" % index for index in range(10)]
    assert [key for key, value in stage.markers() if value == END] == [pack_key(0, index) for index in range(10)]
    with pytest.raises(RuntimeError, match="async with"):
        AsyncKmqClient(stage.properties, stage.config).processed(message)
