"""The common part of groups whose members send heartbeats with epochs: consumer groups and share groups.

    groups.py      all groups of one kind in a shard: what each common record changes
    records.py     the records that every kind has, and the tombstones of a member and of a group
    heartbeats.py  refusals that every kind has, and the sessions of members
    group.py       one group: its members, epochs and targets

A kind derives its group and its table of groups, encodes the records in its own types, and adds records of its own. It
has its own rules for subscriptions, static members, assignments, and the way of a member to its target, because these
differ: a partition of a consumer group has one owner, a partition of a share group may have several.

Sources: Kafka's group-coordinator module (modern); KIP-848, KIP-932.
"""
