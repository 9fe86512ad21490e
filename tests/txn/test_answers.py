"""The answer of a transaction coordinator to every request, in every state of an id, as Kafka 4.3.1 gives it.

Each row is a state of the id, each column the producer in whose name a client asks:

    current   the producer id and epoch that the coordinator has
    behind    the epoch before, as in a request that a client sends again
    older     the epoch before that one
    ahead     the next epoch
    other     another producer id

and each cell an answer:

    +   NONE, and the coordinator writes the next state     ok  NONE, and nothing changes
    C   CONCURRENT_TRANSACTIONS                             F   PRODUCER_FENCED (INVALID_PRODUCER_EPOCH to old clients)
    M   INVALID_PRODUCER_ID_MAPPING                         S   INVALID_TXN_STATE
    A   TRANSACTION_ABORTABLE                               new NONE, with a producer id that is new
    C+  CONCURRENT_TRANSACTIONS, and the coordinator aborts the transaction
    =   NONE, with the current epoch, in which nothing has begun

In PrepareCommit and PrepareAbort markers are outstanding. Kafka has two more states, which no request meets:
PrepareEpochFence is over before the next request is handled, and an id that is Dead is forgotten ("unknown").

Kafka answers CONCURRENT_TRANSACTIONS too while the record of an earlier request is not yet committed. Here the next
request is answered after the earlier one, by the state to which that one leads.
"""

from collections.abc import Callable
from typing import Any

import pytest

from ottla.protocol.errors import ErrorCode as E
from ottla.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction
from ottla.txn.transaction import Transaction
from tests.txn.test_transaction_shard import Stage

UNKNOWN = "unknown"
STATES = (UNKNOWN, "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")
PRODUCERS = ("current", "behind", "older", "ahead", "other")
ERRORS = {
    "+": E.NONE,
    "ok": E.NONE,
    "new": E.NONE,
    "=": E.NONE,
    "C": E.CONCURRENT_TRANSACTIONS,
    "C+": E.CONCURRENT_TRANSACTIONS,
    "F": E.PRODUCER_FENCED,
    "M": E.INVALID_PRODUCER_ID_MAPPING,
    "S": E.INVALID_TXN_STATE,
    "A": E.TRANSACTION_ABORTABLE,
}
CHANGES = ("+", "C+", "new")

# ---- the tables ----------------------------------------------------------------------------------------------------

ENDS = {
    # EndTxn, by the version of the protocol that the client speaks now, and the one that it spoke before
    "first, commit": """
        unknown         M   M   M   M   M
        Empty           S   F   F   F   M
        Ongoing         +   F   F   F   M
        PrepareCommit   C   F   F   F   M
        PrepareAbort    C   F   F   F   M
        CompleteCommit  ok  F   F   F   M
        CompleteAbort   S   F   F   F   M
    """,
    "first, abort": """
        unknown         M   M   M   M   M
        Empty           S   F   F   F   M
        Ongoing         +   F   F   F   M
        PrepareCommit   C   F   F   F   M
        PrepareAbort    C   F   F   F   M
        CompleteCommit  S   F   F   F   M
        CompleteAbort   ok  F   F   F   M
    """,
    "second, commit": """
        unknown         M   M   M   M   M
        Empty           S   F   F   F   M
        Ongoing         +   F   F   F   M
        PrepareCommit   C   C   C   C   C
        PrepareAbort    C   C   C   C   C
        CompleteCommit  S   ok  F   F   M
        CompleteAbort   S   S   F   F   M
    """,
    "second, abort": """
        unknown         M   M   M   M   M
        Empty           +   F   F   F   M
        Ongoing         +   F   F   F   M
        PrepareCommit   C   C   C   C   C
        PrepareAbort    C   C   C   C   C
        CompleteCommit  +   S   F   F   M
        CompleteAbort   +   ok  F   F   M
    """,
    # Kafka answers "behind" as above, and hands the current epoch to an earlier incarnation of the producer: the first
    # version raised no epoch, so this is no request sent again
    "second after first, commit": """
        unknown         M   M   M   M   M
        Empty           S   F   F   F   M
        Ongoing         +   F   F   F   M
        PrepareCommit   C   C   C   C   C
        PrepareAbort    C   C   C   C   C
        CompleteCommit  S   F   F   F   M
        CompleteAbort   S   F   F   F   M
    """,
    "second after first, abort": """
        unknown         M   M   M   M   M
        Empty           +   F   F   F   M
        Ongoing         +   F   F   F   M
        PrepareCommit   C   C   C   C   C
        PrepareAbort    C   C   C   C   C
        CompleteCommit  +   F   F   F   M
        CompleteAbort   +   F   F   F   M
    """,
}
ADDITIONS = {
    # AddPartitionsToTxn, AddOffsetsToTxn; for nodes that ask when they receive Produce from 12 on, TxnOffsetCommit 5
    "a new partition": """
        unknown         M   M   M   M   M
        Empty           +   F   F   F   M
        Ongoing         +   F   F   F   M
        PrepareCommit   C   C   C   C   C
        PrepareAbort    C   C   C   C   C
        CompleteCommit  +   F   F   F   M
        CompleteAbort   +   F   F   F   M
    """,
    "a partition that is in it": """
        unknown         M   M   M   M   M
        Empty           +   F   F   F   M
        Ongoing         ok  F   F   F   M
        PrepareCommit   C   C   C   C   C
        PrepareAbort    C   C   C   C   C
        CompleteCommit  +   F   F   F   M
        CompleteAbort   +   F   F   F   M
    """,
}
VERIFICATIONS = {
    # AddPartitionsToTxn from 4 on with verify_only: when a node receives Produce up to 11, TxnOffsetCommit up to 4
    "a new partition": """
        unknown         M   M   M   M   M
        Empty           A   F   F   F   M
        Ongoing         A   F   F   F   M
        PrepareCommit   C   F   F   F   M
        PrepareAbort    C   F   F   F   M
        CompleteCommit  A   F   F   F   M
        CompleteAbort   A   F   F   F   M
    """,
    "a partition that is in it": """
        unknown         M   M   M   M   M
        Empty           A   F   F   F   M
        Ongoing         ok  F   F   F   M
        PrepareCommit   C   F   F   F   M
        PrepareAbort    C   F   F   F   M
        CompleteCommit  A   F   F   F   M
        CompleteAbort   A   F   F   F   M
    """,
}
INITIALIZATIONS = {
    # InitProducerId: the producer that the client names, "none" where it names none. "behind" is a request sent again,
    # by an id whose epoch was raised by a client that named it
    "first": """
                        none current behind older ahead other
        unknown         new  new     new    new   new   new
        Empty           +    +       =      F     F     F
        Ongoing         C+   C+      C+     C+    C+    F
        PrepareCommit   C    C       C      C     C     C
        PrepareAbort    C    C       C      C     C     C
        CompleteCommit  +    +       F      F     F     F
        CompleteAbort   +    +       F      F     F     F
    """,
    # the end of a transaction has raised the epoch
    "second": """
                        none current behind older ahead other
        unknown         new  new     new    new   new   new
        Empty           +    +       =      F     F     F
        Ongoing         C+   C+      C+     C+    C+    F
        PrepareCommit   C    C       C      C     C     C
        PrepareAbort    C    C       C      C     C     C
        CompleteCommit  +    +       =      F     F     F
        CompleteAbort   +    +       =      F     F     F
    """,
    # a coordinator that has just read the log: no record has the epoch before
    "after a failover": """
                        none current behind older ahead other
        unknown         new  new     new    new   new   new
        Empty           +    +       F      F     F     F
        Ongoing         C+   C+      C+     C+    C+    F
        PrepareCommit   C    C       C      C     C     C
        PrepareAbort    C    C       C      C     C     C
        CompleteCommit  +    +       F      F     F     F
        CompleteAbort   +    +       F      F     F     F
    """,
}


def rows(table: str, columns: tuple[str, ...] = PRODUCERS) -> dict[tuple[str, str], str]:
    """(state, producer) to the written answer."""
    cells: dict[tuple[str, str], str] = {}
    for line in table.strip().splitlines():
        state, *answers = line.split()
        if state in STATES:
            cells |= {(state, who): answer for who, answer in zip(columns, answers, strict=True)}
    assert set(cells) == {(state, who) for state in STATES for who in columns}
    return cells


# ---- the coordinator -----------------------------------------------------------------------------------------------


def led_to(state: str, version: int) -> tuple[Stage, tuple[int, int]]:
    """A coordinator whose id is in this state, by a client of this version of the protocol; the current producer."""
    stage = Stage()
    if state == UNKNOWN:
        return stage, (100, 2)
    stage.init()
    stage.init((100, 0))
    stage.init((100, 1))
    if state != "Empty":
        assert stage.add((100, 2), 0, version=3 if version == 1 else 4) is E.NONE
    if state.startswith(("Prepare", "Complete")):
        stage.end((100, 2), commit=state.endswith("Commit"), version=4 if version == 1 else 5)
    if state.startswith("Complete"):
        stage.marked()
    known = stage.state
    return stage, (known.producer_id, known.producer_epoch)


def asked_as(who: str, current: tuple[int, int]) -> tuple[int, int]:
    producer_id, epoch = current
    return {
        "none": (-1, -1),
        "current": current,
        "behind": (producer_id, epoch - 1),
        "older": (producer_id, epoch - 2),
        "ahead": (producer_id, epoch + 1),
        "other": (producer_id - 1, epoch),
    }[who]


def hold(
    cells: dict[tuple[str, str], str],
    version: int,
    ask: Callable[[Stage, tuple[int, int]], int],
    *,
    knows_fenced: bool = True,
    reloads: bool = False,
) -> None:
    """Ask in every state in the name of every producer."""
    for (state, who), written in cells.items():
        stage, current = led_to(state, version)
        if reloads:
            stage.load()
        before: dict[str, Transaction] = stage.shard.image()
        expected = ERRORS[written]
        if expected is E.PRODUCER_FENCED and not knows_fenced:
            expected = E.INVALID_PRODUCER_EPOCH
        assert E(ask(stage, asked_as(who, current))) is expected, f"{state}, {who}"
        after = stage.shard.image()
        if written == "=":
            assert (stage.state.state.name, stage.state.producer_epoch) == ("EMPTY", current[1]), f"{state}, {who}"
        else:
            assert (before != after) == (written in CHANGES), f"{state}, {who}: {before} -> {after}"


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", range(6))
def test_the_end_of_a_transaction(version: int, commit: bool) -> None:
    word = "commit" if commit else "abort"
    spoken = "second" if version >= 5 else "first"

    def ask(stage: Stage, producer: tuple[int, int]) -> int:
        answer: Any = stage.end(producer, commit=commit, version=version)
        return answer[0] if version >= 5 else answer

    before = 2 if version >= 5 else 1
    hold(rows(ENDS[f"{spoken}, {word}"]), before, ask, knows_fenced=version >= 2)
    if version >= 5:
        hold(rows(ENDS[f"second after first, {word}"]), 1, ask)


@pytest.mark.parametrize("what", list(ADDITIONS))
@pytest.mark.parametrize(("key", "version"), [*((24, at) for at in range(6)), *((25, at) for at in range(5))])
def test_what_a_transaction_writes_to(what: str, key: int, version: int) -> None:
    index = 1 if "new" in what else 0

    def ask(stage: Stage, producer: tuple[int, int]) -> int:
        body = AddPartitionsToTxnTransaction("id", *producer, False, [AddPartitionsToTxnTopic("t", [index])])
        reply = stage.call(key, version, body)
        return reply.topic_results[0].results_by_partition[0].partition_error_code

    for spoken in (1, 2):
        hold(rows(ADDITIONS[what]), spoken, ask, knows_fenced=version >= 2)


@pytest.mark.parametrize("what", list(VERIFICATIONS))
@pytest.mark.parametrize("version", [4, 5])
def test_whether_a_transaction_writes_there(what: str, version: int) -> None:
    index = 1 if "new" in what else 0
    for spoken in (1, 2):
        hold(
            rows(VERIFICATIONS[what]),
            spoken,
            lambda stage, producer: stage.add(producer, index, version=version, verify=True),
        )


@pytest.mark.parametrize("before", list(INITIALIZATIONS))
@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_producer_begins(before: str, version: int) -> None:
    hold(
        rows(INITIALIZATIONS[before], ("none", *PRODUCERS)),
        1 if before == "first" else 2,
        lambda stage, producer: stage.init(producer, version=version)[0],
        knows_fenced=version >= 4,
        reloads=before == "after a failover",
    )


@pytest.mark.parametrize("commit", [True, False])
def test_a_producer_aborts_right_after_the_end_of_a_transaction(commit: bool) -> None:
    """It has not written anything yet, and its last transaction has markers outstanding: it has to try again."""
    stage, _ = led_to("Ongoing", 2)
    assert stage.end((100, 2), commit=commit, version=5) == (E.NONE, 100, 3)
    assert stage.end((100, 3), commit=False, version=5) == (E.CONCURRENT_TRANSACTIONS, -1, -1)
    stage.marked()
    assert stage.end((100, 3), commit=False, version=5) == (E.NONE, 100, 4)
