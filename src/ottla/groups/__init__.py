"""Consumer and share groups: their members, the partitions that each member reads, and each group's committed offsets.

The package is pure: one `GroupShard` per partition of `__consumer_offsets`, whose records are Kafka's own.

    shard.py           dispatch: requests, deadlines, applied batches
    mixed.py           members of the classic protocol in a consumer group
    admin.py           describe, list and delete groups of every kind
    migration.py       a classic group becomes a consumer group, and back, while its members live
    refusals.py        the answer of every request that never reached its group
    offsets.py         committed offsets, also those of open transactions, and their expiry
    deleted_topics.py  the sweep that deletes offsets of deleted topics
    records.py         which module reads which kind of record of `__consumer_offsets`
    classic/           groups of the classic protocol: join, sync, heartbeat, leave
    consumer/          consumer groups whose assignment the coordinator makes
    share/             share groups: heartbeats, assignments, share partitions
    epochs/            the common part of consumer groups and share groups
    offset_records.py  records of committed offsets to values and back
    decision.py        a decision while it is being made
    deadlines.py       the purposes of deadlines
    metadata_view.py   a shard's view of topics and of groups' configuration
    history.py         why groups rebalanced, for the operator
    settings.py        the configuration that a shard reads

The kinds of groups do not import each other. A module may import those below it in this list, but none above it.

Sources: Kafka's group-coordinator module; KIP-62, 134, 211, 345, 394, 447, 800, 814, 848, 932.
"""
