"""Share groups: who is a member, which partitions each member reads, which share partitions the group has.

    groups.py      all share groups of a shard: which request goes where, what each record changes
    group.py       one share group and its members
    membership.py  heartbeats, epochs, assignments, sessions
    assignor.py    who reads which partitions
    admin.py       describe, list, delete; share partitions whose offsets are changed
    records.py     records of share groups to values and back

Where a group stands in its partitions is not here: `ottla.share` knows that.

Sources: Kafka's ShareGroup.java and GroupMetadataManager.java; KIP-932, 1263.
"""
