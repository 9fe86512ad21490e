"""Records the answers to members of a share group: deliveries, acknowledgements and their outcomes.

Each entry is checked when it is recorded. Promises checked here:

- Two members never get the same delivery of a record in one incarnation of the node: at most one member acquires it.
- No delivery count exceeds the limit, and after a confirmed release the next one is higher.
- A record whose acceptance or rejection was confirmed is never delivered again.
- The dead letter of a record has the reason that its member gave before it rejected the record, if the leader that
  writes the dead letter has seen that. Every reason in a dead letter was given for that record.
- An acknowledgement by a member that has not acquired the record succeeds only if the record is done already.

`forget` is the effect of a power cut on promises that were not fsynced.
"""

from ottla.sim.clients.history import TopicPartition
from ottla.sim.kernel.trace import InvariantError

ACCEPT, RELEASE, REJECT = 1, 2, 3

RecordPlace = tuple[TopicPartition, int]
"""A record: its partition and offset."""


class ShareHistory:
    """See the module."""

    def __init__(self, delivery_count_limit: int) -> None:
        self.limit = delivery_count_limit
        self.losses = 0
        self.deliveries = 0
        self.accept_sent: set[RecordPlace] = set()
        """Acceptances that were sent, whatever their outcome: those records count as processed."""
        self._done: dict[RecordPlace, tuple[int, int]] = {}
        """Confirmed acceptances and rejections: the incarnation of the node and the delivery count."""
        self._released: dict[RecordPlace, tuple[int, int]] = {}
        """Confirmed releases: the same."""
        self.reasons: dict[RecordPlace, set[str]] = {}
        """Every reason that was sent, by record."""
        self._explained: dict[tuple[RecordPlace, int], tuple[int, str]] = {}
        """The reason that the node has accepted, and in which incarnation, by record and delivery count."""
        self._told: dict[tuple[int, RecordPlace, int], str] = {}
        """The receiving member by (incarnation, record, delivery count). An answer may be late, so counts need not
        rise."""

    def deliver(self, who: str, life: int | None, place: RecordPlace, count: int) -> None:
        """Record that a member received this record, in this incarnation of the node or leadership of the partition;
        None: in one of several."""
        self.deliveries += 1
        where, offset = place
        if not 1 <= count <= self.limit:
            raise InvariantError(f"{who}: {where} delivers {offset} for the {count}. time, the limit is {self.limit}")
        if life is None:
            return
        other = self._told.setdefault((life, place, count), who)
        if other != who:
            raise InvariantError(f"{who}: {where} delivers {offset} as number {count}, which {other} was given")
        done_life, done_count = self._done.get(place, (life, count))
        if (life, count) > (done_life, done_count):
            raise InvariantError(
                f"{who}: {where} delivers {offset} as number {count}, and it was done as number {done_count}"
            )
        released_life, released_count = self._released.get(place, (life, 0))
        if life > released_life and count <= released_count:
            raise InvariantError(f"{who}: {where} delivers {offset} as number {count} after {released_count} came back")

    def explain(self, life: int, place: RecordPlace, count: int, reason: str) -> None:
        """Record that the node has accepted a reason for this delivery, which its member has acquired."""
        self._explained[place, count] = (life, reason)

    def check_reason(self, place: RecordPlace, reason: str | None) -> None:
        """Check the reason in a dead letter of a record."""
        if reason is not None and reason not in self.reasons.get(place, set()):
            raise InvariantError(f"the dead letter of {place} says {reason!r}, which no member gave for it")

    def check_last_reason(self, place: RecordPlace, count: int, reason: str | None) -> None:
        """Check the reason in the last of the dead letters of a record that were written after this many deliveries by
        nodes which had seen the failure. A node that was killed may have written one for a delivery that nobody
        remembers."""
        life, given = self._explained.get((place, count), (-1, ""))
        if self._done.get(place) == (life, count) and reason != given:
            raise InvariantError(f"the dead letter of {place} says {reason!r}, its member {given!r}")

    def confirm(self, life: int | None, place: RecordPlace, kind: int, count: int) -> None:
        """Record a successful acknowledgement by the member that acquired the record; kinds are Kafka's."""
        if life is None:
            return
        if kind in (ACCEPT, REJECT) or count >= self.limit:
            self._done[place] = (life, count)
        elif kind == RELEASE:
            self._released[place] = max(self._released.get(place, (0, 0)), (life, count))

    def forget(self) -> None:
        """Handle a power cut: confirmations since the last fsync may be void."""
        self.losses += 1
        self._done.clear()
        self._released.clear()
        self._explained.clear()
