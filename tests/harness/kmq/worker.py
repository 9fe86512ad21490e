"""A worker that is killed: takes messages, writes down each begin and end in a file, acknowledges. Run as a process.

    python worker.py BOOTSTRAP FILE SETTINGS-AS-JSON

A message's value is its number, then what is to become of it: `ok`, `poison` (never finished), `fail` (said to fail),
`slow` (worked on for longer than its time-out, with extensions).
"""

import json
import os
import sys
import time

from ottla.kmq import KmqClient, KmqConfig

CONSUMER = {"session.timeout.ms": 1_500, "heartbeat.interval.ms": 300}


def main(bootstrap: str, file: str, settings: str) -> None:
    config = KmqConfig(**json.loads(settings))
    notes = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(what: str, message: object) -> None:
        number, _ = message.value().split()  # type: ignore[attr-defined]
        os.write(notes, f"{what} {int(number)} {time.time_ns() // 1_000_000}\n".encode())

    with KmqClient({"bootstrap.servers": bootstrap, "log_level": 0}, config, consumer=CONSUMER) as client:
        while True:
            for message in client.next_batch(0.2):
                note("begin", message)
                kind = message.value().split()[1]
                if kind == b"poison":
                    continue
                if kind == b"fail":
                    client.failed(message, delay_ms=200, reason="as it was told")
                    continue
                if kind == b"slow":
                    for _ in range(4):
                        time.sleep(config.timeout_ms / 3000)
                        client.extend(message)
                time.sleep(0.002)
                note("end", message)
                client.processed(message)


if __name__ == "__main__":
    main(*sys.argv[1:])
