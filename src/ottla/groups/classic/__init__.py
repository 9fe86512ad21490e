"""Groups of the classic protocol, whose members assign partitions themselves: a leader does it for all.

    requests.py   join, sync, heartbeat, leave: what each may ask in each state of its group
    rebalance.py  the two phases of a rebalance, sessions, and their deadlines
    group.py      one group: its state, members and votes
    records.py    a group's record to values and back
    replies.py    wire answers

Sources: Kafka's ClassicGroup.java and GroupMetadataManager.java; KIP-62, 134, 345, 394, 814.
"""
