"""Consumer and share groups: who is a member of which, which partitions each reads, and how far each group has read.

A pure room: one `GroupShard` per partition of `__consumer_offsets`, whose records are Kafka's own.

    shard.py           dispatch: requests, deadlines, applied batches
    mixed.py           members of the classic protocol in a consumer group
    admin.py           describe, list and delete groups of every kind
    migration.py       a classic group becomes a consumer group, and back, while its members live
    refusals.py        the answer of every request that never reached its group
    offsets.py         committed offsets, also those of open transactions, and their expiry
    deleted_topics.py  the sweep that deletes offsets of topics that are gone
    records.py         which kind of record of `__consumer_offsets` is read where

    classic/           groups of the classic protocol: join, sync, heartbeat, leave
    consumer/          consumer groups whose assignment the coordinator makes
    share/             share groups: heartbeats, assignments, share partitions

    offset_records.py  records of committed offsets to values and back
    decision.py        a decision while it is being made
    deadlines.py       what a deadline is for
    metadata_view.py   what a shard sees of topics and of groups' configuration
    settings.py        the configuration that a shard reads

The kinds of groups do not know each other; what stands above them in this list may import them, what stands below
may not.

Sources: Kafka's group-coordinator module; KIP-62, 134, 211, 345, 394, 447, 800, 814, 848, 932.
"""
