"""Share groups: their members, the partitions that each member reads, and the group's share partitions.

    groups.py      all share groups of a shard: which request goes where, what each record changes
    group.py       one share group and its members
    membership.py  heartbeats, epochs, assignments, sessions
    assignor.py    which member reads which partitions
    admin.py       describe, list, delete; share partitions whose offsets are changed
    records.py     records of share groups to values and back

`ottla.share` has a group's position in its partitions.

Sources: Kafka's ShareGroup.java and GroupMetadataManager.java; KIP-932, 1263.
"""
