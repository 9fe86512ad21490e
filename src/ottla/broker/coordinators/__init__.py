"""Hosts coordinators of groups, share-group state and transactions: shards, fed by requests, time and their logs.

    shards.py              hosts the shards of one internal topic
    loading.py             which shard is loaded next, and when
    metadata_view.py       what the group coordinator sees of its node
    share_state_shards.py  what the share coordinator sees of its node
    transaction_shards.py  what the transaction coordinator sees of its node
    rounds.py              requests that ask coordinators several times
    remote_shards.py       calls to share coordinators on other nodes
    verification.py        asks the transaction coordinator before a transaction's first batch in a partition

`ottla.groups`, `ottla.share` and `ottla.txn` have the shards, which decide.
"""
