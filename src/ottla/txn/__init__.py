"""Transactions (KIP-98, KIP-890): the state of each transactional id, and how its transactions end in every partition.

    transaction.py  one transactional id: its states, and the transitions that requests cause
    records.py      the records of `__transaction_state`, byte for byte Kafka's
    markers.py      which partitions still lack the marker that ends a transaction, and their leaders' answers
    shard.py        the transaction coordinator's shard over `__transaction_state`
    refusals.py     the answer of each of its APIs to a request that reached no shard
    settings.py     the configuration of the shard, and its view of the node

Pure: imports `machine` and `protocol` only.
"""
