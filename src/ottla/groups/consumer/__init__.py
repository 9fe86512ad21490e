"""Consumer groups whose assignment the coordinator makes: a member's heartbeats report its subscription and partitions.

    groups.py          all groups of a shard: which request goes where, what each record changes
    membership.py      heartbeats: members join, stay, change their subscription, and leave
    assignment.py      when a new target assignment is made, and its records
    reconciliation.py  how a member gets from what it owns to its target, without two owners of a partition
    assignors.py       `uniform` and `range`
    pace.py            the interval until a member's next heartbeat
    offsets.py         whether a group accepts a commit or a fetch of offsets
    admin.py           describe, list, delete
    group.py           one group: its members, epochs, targets and the owner of each partition
    records.py         its records to values and back

Sources: Kafka's group-coordinator module (modern/consumer); KIP-848, KIP-1251.
"""
