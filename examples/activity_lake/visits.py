"""Sends the page views of a small shop: `python visits.py COUNT`."""

import json
import os
import random
import sys
import time

from confluent_kafka import Producer

PAGES = ["/", "/tea", "/cups", "/cart", "/checkout"]


def main(count: int) -> None:
    chance = random.Random(7)
    producer = Producer({"bootstrap.servers": os.environ.get("OTTLA_BOOTSTRAP", "localhost:9092")})
    start = time.time() - count
    for number in range(count):
        visitor = f"visitor-{chance.randrange(1 + count // 20)}"
        view = {"time": start + number, "visitor": visitor, "page": chance.choice(PAGES), "status": 200}
        producer.produce("views", key=visitor, value=json.dumps(view))
    assert producer.flush(60) == 0, "the broker does not answer"
    print(count, "page views sent")


if __name__ == "__main__":
    main(int(sys.argv[1]))
