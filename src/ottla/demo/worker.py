"""Runs one worker of a job queue, a process of its own: `python -m ottla.demo.worker BOOTSTRAP GROUP NAME FD TOPIC`.

A job is a JSON object. Each takes WORK_S. A job is either a picture to resize or a mail to send:

- A file that is not a picture is rejected.
- A picture from the busy shop is released at its first delivery and done at its second.
- A mail is rejected while the mail server is down. It is down from the start if there is one more argument,
  SERVER_DOWN, until the signal SERVER_UP.

It gives the node the reason for which it rejects or releases a job. It reports each result to its parent through the
pipe FD before it acknowledges the job. So if a worker is killed, at worst another worker does some jobs again.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ottla.client import ShareReasons

WORK_S = 0.02
POLL_S = 0.2

DONE, REJECTED, RELEASED = "done", "rejected", "released"

SERVER_DOWN: Final = "--mail-server-down"
SERVER_UP: Final = signal.SIGUSR1
SERVER_SAYS: Final = "451 the mail server is down"
"""The reason for which a mail is rejected."""
BUSY_SHOP, SHOP = "https://busy.example.org", "https://shop.example.org"

is_down = False
"""Whether the mail server is down."""


class JobError(Exception):
    """A job failed for good."""


class BusyError(JobError):
    """A job failed for now."""


def main(bootstrap: str, group: str, name: str, pipe: int, topic: str) -> None:
    from confluent_kafka import AcknowledgeType, ShareConsumer

    parent = Connection(pipe, readable=False)
    verdicts = {DONE: AcknowledgeType.ACCEPT, REJECTED: AcknowledgeType.REJECT, RELEASED: AcknowledgeType.RELEASE}
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "client.id": name,
        "share.acknowledgement.mode": "explicit",
        "max.poll.records": 1,
        "fetch.wait.max.ms": 50,
        "log_level": 2,
    }
    consumer = ShareConsumer(settings)
    reasons: ShareReasons | None = None
    consumer.subscribe([topic])
    parent.send(("ready",))
    try:
        while True:
            messages = [each for each in consumer.poll(POLL_S) if each.error() is None]
            for message in messages:
                deliveries = message.delivery_count() or 1
                time.sleep(WORK_S)
                did = DONE
                try:
                    work(json.loads(message.value() or b"{}"), deliveries)
                except JobError as error:
                    did = RELEASED if isinstance(error, BusyError) else REJECTED
                    reasons = reasons or share_reasons(settings)
                    reasons.give(message, str(error))
                parent.send((did, message.offset(), deliveries))
                consumer.acknowledge(message, verdicts[did])
            if messages:
                consumer.commit_sync()
    except (KeyboardInterrupt, BrokenPipeError):
        pass
    finally:
        consumer.close()
        if reasons is not None:
            reasons.close()


def share_reasons(settings: dict[str, Any]) -> ShareReasons:
    """What gives reasons. It is imported with the first failure, because sixteen workers start at once."""
    from ottla.client import ShareReasons

    return ShareReasons(settings)


def work(job: Mapping[str, object], deliveries: int) -> None:
    """Do this delivery of a job. Raises BusyError if it fails for now, JobError if it fails for good."""
    if "to" in job:
        if is_down:
            raise JobError(SERVER_SAYS)
        return
    picture = str(job.get("picture", ""))
    if not picture.endswith(".jpg"):
        raise JobError(f"this is not a picture: {picture.rpartition('/')[2]}")
    if picture.startswith(BUSY_SHOP) and deliveries == 1:
        raise BusyError("the shop is busy, try again later")


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
