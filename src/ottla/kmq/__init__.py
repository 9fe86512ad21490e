"""A queue on any Kafka cluster: workers acknowledge each message separately, and unfinished messages are redelivered.

Start and end markers are kept in a topic of their own, in the format of softwaremill/kmq 0.3.2. So clients and trackers
of both projects can share topics. The package uses confluent-kafka alone and works against Ottla, Apache Kafka and
Redpanda; docs/kmq.md is the guide.

- `KmqClient`, `AsyncKmqClient`: workers. `RedeliveryTracker`: redelivers messages that workers did not finish; run two.
- `KmqConfig`: names and times. `create_topics`: creates the topics that a queue needs. `KmqRefusedError`: an impossible
  request, and why.
"""

from ottla.kmq.aio import AsyncKmqClient
from ottla.kmq.client import KmqClient
from ottla.kmq.config import KmqConfig, KmqRefusedError
from ottla.kmq.topics import create_topics
from ottla.kmq.tracker import RedeliveryTracker

__all__ = ["AsyncKmqClient", "KmqClient", "KmqConfig", "KmqRefusedError", "RedeliveryTracker", "create_topics"]
