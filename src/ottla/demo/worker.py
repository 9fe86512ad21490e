"""Runs one worker of the job queue, a process of its own: `python -m ottla.demo.worker BOOTSTRAP GROUP NAME FD TOPIC`.

A job is `number kind`. Each takes WORK_S. A job of kind "broken" is rejected; a "flaky" one is released at its first
delivery and done at its second; a "refused" one is rejected, and done after it was sent back from the dead letters; all
others are done. The worker reports each result to its parent through the pipe FD
before it acknowledges the job. So if a worker is killed, at worst another worker does some jobs again.
"""

from __future__ import annotations

import signal
import sys
import time
from multiprocessing.connection import Connection

WORK_S = 0.02
POLL_S = 0.2

SENT_BACK = "ottla-redrive-count"
"""The header of a record that was sent back from a dead-letter topic."""

DONE, REJECTED, RELEASED = "done", "rejected", "released"


def main(bootstrap: str, group: str, name: str, pipe: int, topic: str) -> None:
    from confluent_kafka import AcknowledgeType, ShareConsumer

    parent = Connection(pipe, readable=False)
    verdicts = {DONE: AcknowledgeType.ACCEPT, REJECTED: AcknowledgeType.REJECT, RELEASED: AcknowledgeType.RELEASE}
    consumer = ShareConsumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "client.id": name,
            "share.acknowledgement.mode": "explicit",
            "max.poll.records": 1,
            "fetch.wait.max.ms": 50,
            "log_level": 2,
        }
    )
    consumer.subscribe([topic])
    parent.send(("ready",))
    try:
        while True:
            messages = [each for each in consumer.poll(POLL_S) if each.error() is None]
            for message in messages:
                number, kind = (message.value() or b"").decode().split()
                deliveries = message.delivery_count() or 1
                time.sleep(WORK_S)
                sent_back = any(name == SENT_BACK for name, _ in message.headers() or ())
                did = verdict(kind, deliveries, sent_back=sent_back)
                parent.send((did, int(number), deliveries))
                consumer.acknowledge(message, verdicts[did])
            if messages:
                consumer.commit_sync()
    except (KeyboardInterrupt, BrokenPipeError):
        pass
    finally:
        consumer.close()


def verdict(kind: str, deliveries: int, *, sent_back: bool) -> str:
    if kind == "broken" or (kind == "refused" and not sent_back):
        return REJECTED
    return RELEASED if kind == "flaky" and deliveries == 1 else DONE


def interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, interrupt)
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5])
