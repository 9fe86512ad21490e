"""A worker of the job queue: `python worker.py [SECONDS]` ends after so many seconds without a job."""

import os
import sys

from confluent_kafka import AcknowledgeType, Message, ShareConsumer

from ottla.client import ShareReasons

SETTINGS = {
    "bootstrap.servers": os.environ.get("OTTLA_BOOTSTRAP", "localhost:9092"),
    "group.id": "thumbnails",
    "share.acknowledgement.mode": "explicit",
}


class TryAgainError(Exception):
    """The job failed for now."""


def work(message: Message) -> None:
    """Process one job. Raises TryAgainError for a temporary failure and ValueError for a job that can never succeed."""
    job = (message.value() or b"").decode()
    if not job.endswith(".png"):
        raise ValueError("not a picture")
    if job.startswith("busy") and message.delivery_count() == 1:
        raise TryAgainError("the camera is busy")
    print("done", job, "in delivery", message.delivery_count(), flush=True)


def main(idle_s: float) -> None:
    with ShareConsumer(SETTINGS) as worker, ShareReasons(SETTINGS) as reasons:
        worker.subscribe(["pictures"])
        while messages := list(worker.poll(idle_s)):
            for message in messages:
                try:
                    work(message)
                except TryAgainError as error:
                    reasons.give(message, error)
                    worker.acknowledge(message, AcknowledgeType.RELEASE)
                except ValueError as error:
                    reasons.give(message, error)
                    worker.acknowledge(message, AcknowledgeType.REJECT)
                else:
                    worker.acknowledge(message, AcknowledgeType.ACCEPT)
            worker.commit_sync()


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 3600)
