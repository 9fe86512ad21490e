"""Runs one worker of a job queue, a process of its own: `python -m ottla.demo.worker BOOTSTRAP GROUP NAME FD TOPIC`.

A job is a JSON object. Each takes WORK_S. A job is either a picture to resize or a mail to send:

- A file that is not a picture is rejected.
- A picture from the busy shop is released at its first delivery and done at its second.
- A mail is rejected while the mail server is down. It is down from the start if there is one more argument,
  SERVER_DOWN, until the signal SERVER_UP.

The worker reports each result to its parent through the pipe FD before it acknowledges the job. So if a worker is
killed, at worst another worker does some jobs again.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Final

WORK_S = 0.02
POLL_S = 0.2

DONE, REJECTED, RELEASED = "done", "rejected", "released"

SERVER_DOWN: Final = "--mail-server-down"
SERVER_UP: Final = signal.SIGUSR1
BUSY_SHOP, SHOP = "https://busy.example.org", "https://shop.example.org"

is_down = False
"""Whether the mail server is down."""


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
                deliveries = message.delivery_count() or 1
                time.sleep(WORK_S)
                did = verdict(json.loads(message.value() or b"{}"), deliveries)
                parent.send((did, message.offset(), deliveries))
                consumer.acknowledge(message, verdicts[did])
            if messages:
                consumer.commit_sync()
    except (KeyboardInterrupt, BrokenPipeError):
        pass
    finally:
        consumer.close()


def verdict(job: Mapping[str, object], deliveries: int) -> str:
    """Decide the outcome of this delivery of a job."""
    if "to" in job:
        return REJECTED if is_down else DONE
    picture = str(job.get("picture", ""))
    if not picture.endswith(".jpg"):
        return REJECTED
    return RELEASED if picture.startswith(BUSY_SHOP) and deliveries == 1 else DONE


def interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def come_up(number: int, frame: object) -> None:
    """The mail server is up again."""
    global is_down
    is_down = False


if __name__ == "__main__":
    is_down = SERVER_DOWN in sys.argv
    signal.signal(signal.SIGTERM, interrupt)
    signal.signal(SERVER_UP, come_up)
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5])
