"""Consumer and share groups: who is a member of which, which partitions each reads, and how far each group has read.

A pure room: one `GroupShard` per partition of `__consumer_offsets`, whose records are Kafka's own.

    shard.py     dispatch: requests, deadlines, applied batches
    group.py     one group: its state, members and votes
    classic.py   the classic protocol: join, sync, heartbeat, leave and their deadlines
    offsets.py   committed offsets, also those of open transactions, and their expiry
    describe.py  describe, list and delete groups
    records.py   records of `__consumer_offsets` to values and back
    replies.py   wire answers
    settings.py  the configuration a shard reads

    share_groups.py        share groups: dispatch, and what their records change
    share_group.py         one share group and its members
    share_membership.py    heartbeats, epochs, assignments, sessions
    share_assignor.py      who reads which partitions
    share_admin.py         describe, list, delete; share partitions whose offsets are changed
    share_records.py       records of share groups to values and back
    share_surroundings.py  what they must know of topics and configuration

Sources: Kafka's group-coordinator module; KIP-62, 134, 211, 345, 394, 447, 800, 814, 932.
"""
