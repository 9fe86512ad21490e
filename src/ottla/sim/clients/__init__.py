"""Simulates client processes, and records the answers that they receive.

    client.py                one client process: connections, frames, timers, but nothing of Kafka
    kafka.py                 a Kafka client: requests, answers, timeouts, metadata
    workload_view.py         what a client asks of its workload
    batches.py               record batches, by a codec of its own
    producers.py             producers
    readers.py               what all readers have in common
    consumers.py             members of classic groups
    heartbeating.py          members of KIP-848 groups, and classic ones that share their groups
    ownership.py             which member owns which partition, by the answers
    committers.py            a group without members
    offset_committers.py     the same in a cluster
    admins.py                administrators of topics, configs and records
    reassigners.py           an administrator who moves replicas
    racers.py                clients that change the same metadata at the same time
    visitors.py              clients whose rights change
    tenants.py               users that log in with passwords
    replicated.py            producers, readers and committers of a cluster
    share_clients.py         members of a share group, and an administrator who disturbs them
    transactional.py         transactional producers that die, hang and return
    transactional_client.py  finds a transactional client's coordinator
    transactional_states.py  the states of a transactional producer
    transformers.py          readers of committed records, and groups that write derived ones
    history.py               what clients learn from answers, checked when it is recorded
    share_history.py         the same for share groups
    transaction_history.py   the same for transactions

A client knows only answers, as a real one does; nothing here reads the state of a node.
"""
