"""Finds the open transactions in partitions that block readers of committed records, and their coordinators."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from ottla.client.read_together import Question
from ottla.client.transactions import UNDER_WAY
from ottla.doctor.asking import Answers, Questions, seen
from ottla.doctor.snapshot import OpenTransaction, TopicPartition
from ottla.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from ottla.protocol.messages.describe_transactions import DescribeTransactionsRequest
from ottla.protocol.messages.list_transactions import ListTransactionsRequest

LISTED: Final = ListTransactionsRequest(list(UNDER_WAY), [], -1)
"""Asks a coordinator for its open transactions."""
TRANSACTIONS_MAX: Final = 1_000
"""Transactions that are described by one node."""
PRODUCERS: Final = "producers"
STATES: Final = "transactions"


class OpenTransactions:
    """The search. `held`: the partitions that are held back; `listed`: the answer of each node to `LISTED`."""

    def __init__(
        self,
        held: Iterable[TopicPartition],
        leaders: Mapping[TopicPartition, int],
        listed: Mapping[int, Any],
        unseen: dict[str, None],
    ) -> None:
        self._unseen = unseen
        self._listed = listed
        self._held: dict[int, dict[str, list[int]]] = {}
        for topic, index in held:
            self._held.setdefault(leaders[topic, index], {}).setdefault(topic, []).append(index)

    def questions(self, node_id: int) -> dict[Hashable, Question]:
        """The questions to a node: about the producers of the partitions that it leads, and its transactions if few."""
        found: dict[Hashable, Question] = {}
        if topics := self._held.get(node_id):
            found[PRODUCERS] = DescribeProducersRequest([TopicRequest(name, rows) for name, rows in topics.items()])
        if self._held and 0 < len(names := self._names(node_id)) <= TRANSACTIONS_MAX:
            found[STATES] = DescribeTransactionsRequest(names)
        return found

    def _names(self, node_id: int, producer_ids: Iterable[int] | None = None) -> list[str]:
        """The transactional ids that a node has listed, of some producers."""
        listed = getattr(self._listed[node_id], "transaction_states", ())
        wanted = None if producer_ids is None else set(producer_ids)
        return [each.transactional_id for each in listed if wanted is None or each.producer_id in wanted]

    def found(self, answers: Answers, ask: Callable[[Questions], Answers]) -> list[OpenTransaction]:
        """The open transactions. `answers`: those to `questions`; `ask`: asks more."""
        opened = [
            OpenTransaction(
                (topic.name, part.partition_index), each.producer_id, each.current_txn_start_offset, each.last_timestamp
            )
            for node_id in self._held
            if PRODUCERS in answers.get(node_id, {})
            for topic in self._topics(node_id, answers)
            for part in topic.partitions
            if not part.error_code
            for each in part.active_producers
            if each.current_txn_start_offset >= 0
        ]
        if not opened:
            return []
        known = self._coordinated(sorted({each.producer_id for each in opened}), answers, ask)
        if known is None:
            return []
        return [
            replace(
                each,
                name=state.transactional_id,
                started_ms=state.transaction_start_time_ms,
                timeout_ms=state.transaction_timeout_ms,
            )
            if (state := known.get((each.producer_id, each.place))) is not None
            else each
            for each in opened
        ]

    def _topics(self, node_id: int, answers: Answers) -> list[Any]:
        answer = seen(answers[node_id][PRODUCERS], f"producers on node {node_id}", self._unseen)
        return [] if answer is None else answer.topics

    def _coordinated(
        self, producer_ids: list[int], answers: Answers, ask: Callable[[Questions], Answers]
    ) -> dict[tuple[int, TopicPartition], Any] | None:
        """The states of transactions that coordinators know, by producer and partition; None if a coordinator does
        not answer: then nothing can be said about the others."""
        late: dict[int, dict[Hashable, Question]] = {
            node_id: {STATES: DescribeTransactionsRequest(self._names(node_id, producer_ids)[:TRANSACTIONS_MAX])}
            for node_id in self._listed
            if len(self._names(node_id)) > TRANSACTIONS_MAX
        }
        more = ask(late)
        known: dict[tuple[int, TopicPartition], Any] = {}
        for node_id, listed in self._listed.items():
            what = f"transactions of node {node_id}"
            if seen(listed, what, self._unseen) is None:
                return None
            if not self._names(node_id):
                continue
            states = seen((more if node_id in more else answers)[node_id][STATES], what, self._unseen)
            if states is None:
                return None
            for state in states.transaction_states:
                for topic in state.topics:
                    for index in topic.partitions:
                        known[state.producer_id, (topic.topic, index)] = state
        return known
