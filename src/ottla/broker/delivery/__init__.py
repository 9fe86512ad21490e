"""Delivers records of share groups to their members: share partitions, sessions, acknowledgements, dead letters.

    requests.py      ShareFetch and ShareAcknowledge: acknowledge, fetch, wait
    sessions.py      which partitions a member reads here, over which connection
    members.py       the connection that each member last used
    host.py          the table of share partitions; carries out what their machines decide
    partitions.py    one share partition: its machine, its log, and who waits for it
    loading.py       reads the state of a share partition from its coordinator
    back_offs.py     back-offs and failures of records while that state is read again
    persisting.py    writes the changes of share partitions to their coordinators
    state_calls.py   calls the coordinators
    reading.py       the records that one fetch acquires
    delays.py        headers that delay a message
    batch_parts.py   parts of large batches
    answer.py        builds answers without copying records
    dead_letters.py  copies records that a group gave up into its dead-letter topic
    sent_letters.py  sends dead letters to another node
    describing.py    which records are acquired, delayed, returned or archiving
    tick_count.py    bounds the work of a tick

`ottla.share` decides: it has the machine of a share partition and the shard of the share coordinator.
"""
