"""Transactions (KIP-98, KIP-890): what a transactional id is doing, and how what it began is ended everywhere.

transaction.py  one transactional id: its states, and which request may lead from one to the next
records.py      the records of `__transaction_state`, byte for byte Kafka's
markers.py      which partitions still lack the marker that ends a transaction, and what their leaders said
shard.py        the transaction coordinator's shard over `__transaction_state`
refusals.py     the answer of each of its APIs to a request that reached no shard

Pure: imports `machine` and `protocol` only.
"""
