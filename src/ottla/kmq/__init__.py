"""A queue on any Kafka: every message acknowledged by itself, and given again when nobody finished it.

Start and end markers in a topic of their own, as softwaremill/kmq 0.3.2 writes them: its clients and trackers and these
can share topics. Works through confluent-kafka alone, against Ottla, Apache Kafka, Redpanda; docs/kmq.md is the guide.

- `KmqClient`, `AsyncKmqClient`: workers. `RedeliveryTracker`: gives again what was not finished; run two.
- `KmqConfig`: names and times. `create_topics`: the topics that a queue needs. `KmqRefused`: what can't be, and why.
"""

from ottla.kmq.aio import AsyncKmqClient
from ottla.kmq.client import KmqClient
from ottla.kmq.config import KmqConfig, KmqRefused
from ottla.kmq.topics import create_topics
from ottla.kmq.tracker import RedeliveryTracker

__all__ = ["AsyncKmqClient", "KmqClient", "KmqConfig", "KmqRefused", "RedeliveryTracker", "create_topics"]
