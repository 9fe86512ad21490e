"""Names the headers that a share group's dead letter adds to those of its record. The broker writes them, and clients
read them.

Sources: KIP-1191; Kafka's ShareGroupDLQStateManager.java. The headers whose names begin with `ottla` are Ottla's own.
"""

from typing import Final

PREFIX: Final = "__dlq.errors."
"""The beginning of KIP-1191's headers: `topic`, `partition`, `offset`, `group`, `delivery.count`, `message`."""
FIRST_FAILURE: Final = "ottla-first-failure-ms"
LAST_FAILURE: Final = "ottla-last-failure-ms"
"""When the first and the last delivery failed: milliseconds since 1970."""
LAST_MEMBER: Final = "ottla-last-failure-member"
LAST_CLIENT: Final = "ottla-last-failure-client"
"""The member that had the record last, and its client id."""
WORKER_REASON: Final = "ottla-failure-reason"
REASON_DELIVERY: Final = "ottla-failure-reason-delivery"
"""The last reason that a member gave, and the number of the delivery that it explains."""
OWN: Final = (PREFIX, FIRST_FAILURE, LAST_FAILURE, LAST_MEMBER, LAST_CLIENT, WORKER_REASON)
"""The beginnings of all these names."""

REJECTED: Final = "Offset rejected by client."
TOO_OFTEN: Final = "Offset delivery count exceeded the threshold."
"""Kafka's sentences in the header `message`."""
