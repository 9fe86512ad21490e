"""Tracks the cluster as this node knows it, and changes it.

    metadata.py        the metadata image of this node, and changes of it
    store_work.py      carries out `Commit` and `Reread` for the I/O host
    store_memory.py    how far this node has seen the metadata store
    encoded_topics.py  topics as Metadata answers have them
    membership.py      this node's registration, and how it leaves
    members.py         the nodes of the cluster, for requests
    leaving.py         when this node may stop
    controller.py      the controller: places partitions and elects leaders
    duties.py          what the controller has to do, as plain values
    elections.py       a partition's leader, in-sync replicas and eligible leaders
    isr_changes.py     whether the controller accepts a leader's ISR proposal
    registrations.py   the registrations of replicas' nodes, for leaders
    spreading.py       where the replicas of new partitions are placed
    reassignments.py   moves of replicas
    adopting.py        which topics are adopted from logs
    peers.py           requests to other nodes
    trust.py           which connections are those of nodes
    introduction.py    how a connection to another node begins
    envelopes.py       requests of clients that another node serves

`broker/api` has the handlers of requests, and `metadata` the rows.
"""
