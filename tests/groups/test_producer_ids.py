"""Producer ids that clients made up: they may stand in logs, and the node's own go on as if they did not."""

import json

import pytest

from ottla.metadata.memory import MemoryStore
from ottla.metadata.producer_ids import BLOCK, KEY, ProducerIds
from ottla.metadata.store import ABSENT, Put
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.records.record import Record, build_batch
from tests.harness.groups.host_stage import HostStage
from tests.harness.producer_ids import take


def produce(stage: HostStage, producer_id: int) -> None:
    partition = stage.node.replicas.get("t", 0)
    assert partition is not None
    batch = build_batch(
        [Record(timestamp_ms=stage.now, value=b"v")], producer_id=producer_id, producer_epoch=0, base_sequence=0
    )
    partition.append(stage.now, memoryview(batch))


def new_id(stage: HostStage) -> int:
    reply = stage.ask(InitProducerIdRequest(None, 1_000), 4)
    assert reply.error_code == 0, reply.error_code
    return reply.producer_id


@pytest.mark.parametrize("made_up", [2**63 - 2, 2**63 - BLOCK, 2**62, 2**60])
def test_an_id_that_a_client_made_up_uses_none_up(made_up: int) -> None:
    stage = HostStage()
    first = new_id(stage)
    produce(stage, first)
    produce(stage, made_up)
    for _ in range(3):
        stage.restart(clean=False)
        following = new_id(stage)
        assert first < following < 2**61
        first = following
    topic = stage.node.image.topics.get("t")
    assert topic is not None
    stage.change(stage.node.topics.deleting([topic]))
    assert new_id(stage) == first + 1


def test_a_new_store_goes_on_behind_what_the_logs_know_and_believes_nobody_else() -> None:
    ids = ProducerIds(0)
    ids.seen([7, 4_711, 2**63 - 2])
    ids.seen([12, 2**60])
    assert take(ids, MemoryStore()) == 4_712


def test_a_store_that_was_led_to_the_end_hands_out_ids_again() -> None:
    store = MemoryStore()
    store.commit([Put(KEY, json.dumps({"next_producer_id": 2**63 - 5}).encode(), ABSENT)])
    ids = ProducerIds(0)
    taken = [take(ids, store) for _ in range(BLOCK + 1)]
    assert taken == list(range(2**61, 2**61 + BLOCK + 1))
    assert take(ProducerIds(0), store) == 2**61 + 2 * BLOCK
