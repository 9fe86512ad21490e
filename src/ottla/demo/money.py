"""Moves money between accounts, each transfer one transaction, and adds up what readers see of it.

A record is an account and the amount added to it. Transfers keep the sum of all accounts constant: the amount paid in
at the beginning. A reader checks the sum whenever it has read all available records. With `read_committed` it sees
whole transfers only. With `read_uncommitted` it also sees halves of transfers, and keeps those that were aborted.
"""

from __future__ import annotations

import random
import threading
import time
from typing import Any

LEDGER = "ledger"
ACCOUNTS, PAID_IN = 8, 100
TOTAL = ACCOUNTS * PAID_IN
HALF_S = 0.004
"""How long a transfer stays half done."""
TAKEN_BACK = 0.1
"""The share of transfers that the teller aborts in the middle."""
TIMEOUT_S = 30.0
POLL_S = 0.05


class _Clerk:
    """Works in a thread until stopped. `_run` is the work, which ends when `_stopping` is set."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self._bootstrap = bootstrap
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop after the current work."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        raise NotImplementedError


class Teller(_Clerk):
    """Makes transfers in a thread until stopped. `made`, `taken_back`: transfers committed and aborted; `failure`: what
    went wrong."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap, "teller")
        self.made = 0
        self.taken_back = 0
        self.failed = 0
        self.failure: str | None = None
        self._chance = random.Random(1)

    def _run(self) -> None:
        from confluent_kafka import KafkaException, Producer

        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "transactional.id": "teller",
                "transaction.timeout.ms": 10_000,
                "linger.ms": 0,
                "log_level": 2,
            }
        )
        try:
            producer.init_transactions(TIMEOUT_S)
            self._in_one(producer, [(account, PAID_IN) for account in range(ACCOUNTS)])
            while not self._stopping.is_set():
                self._transfer(producer)
        except KafkaException as error:
            self.failure = f"The teller could not continue: {error.args[0].str()}."

    def _transfer(self, producer: Any) -> None:
        giver, taker = self._chance.sample(range(ACCOUNTS), 2)
        amount = self._chance.randrange(1, 50)
        takes_back = self._chance.random() < TAKEN_BACK
        done = self._in_one(producer, [(giver, -amount), (taker, amount)], takes_back=takes_back)
        self.made += done and not takes_back
        self.taken_back += done and takes_back
        self.failed += not done

    def _in_one(self, producer: Any, entries: list[tuple[int, int]], *, takes_back: bool = False) -> bool:
        """Run one transaction; returns whether it ended as intended. A failed transaction is aborted."""
        from confluent_kafka import KafkaException

        producer.begin_transaction()
        try:
            for number, (account, amount) in enumerate(entries):
                producer.produce(LEDGER, str(amount), str(account), partition=0)
                if number == 0:
                    producer.flush(TIMEOUT_S)
                    time.sleep(HALF_S)
                    if takes_back:
                        break
            if not takes_back:
                producer.commit_transaction(TIMEOUT_S)
                return True
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
        producer.abort_transaction(TIMEOUT_S)
        return takes_back


class Auditor(_Clerk):
    """Reads the ledger in a thread. `looks`: how often it had read all available records; `wrong`: the wrong sums that
    it found then, newest last; `balance`: the present sum."""

    def __init__(self, bootstrap: str, isolation: str) -> None:
        super().__init__(bootstrap, isolation)
        self.isolation = isolation
        self.looks = 0
        self.wrong: list[int] = []
        self.balance = 0
        self.has_read = False

    def _run(self) -> None:
        from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": f"auditor-{self.isolation}",
                "isolation.level": self.isolation,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 10,
                "log_level": 2,
            }
        )
        consumer.assign([TopicPartition(LEDGER, 0, OFFSET_BEGINNING)])
        try:
            while not self._stopping.is_set():
                message = consumer.poll(POLL_S)
                if message is None:
                    continue
                error = message.error()
                if error is None:
                    self.balance += int(message.value() or b"0")
                    self.has_read = True
                elif error.code() == KafkaError._PARTITION_EOF:
                    self._look()
        finally:
            consumer.close()

    def _look(self) -> None:
        """Check the sum: all available records have been read."""
        if self.has_read:
            self.looks += 1
            if self.balance != TOTAL:
                self.wrong.append(self.balance)
