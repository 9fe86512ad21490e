"""Runs simulations: the clients, the faults and their repair, and the checks.

    workload.py                 the clients of a run of one node, and how the node is configured
    run.py                      one seed, from its start to the last check
    faults.py                   the faults, their times, and their repair
    checkers.py                 the invariants inside the node, and the audit of its logs
    groups.py                   the clients of a run of groups of both protocols
    groups_run.py               one seed of it
    share_workload.py           the clients of a run of share groups
    share_run.py                one seed of it
    transactions.py             the clients of a run of transactions
    transactions_run.py         one seed of it
    transaction_checkers.py     the internal effects of transactions
    compaction_checkers.py      compacts a topic completely, and checks the result
    cluster.py                  nodes that replicate topics among them
    cluster_run.py              one seed of it
    elected_cluster.py          nodes that share a metadata store and elect a controller
    following.py                how these nodes learn of each other and of commits
    watched_store.py            checks every commit of their metadata store
    replica_checkers.py         checks their replicas at every step
    compacted_replicas.py       checks the replicas of a compacted topic
    clustered_run.py            one seed of a workload on such a cluster
    clustered_access.py         ACLs and passwords there
    clustered_admins.py         administrators there
    clustered_groups.py         groups of both protocols there
    clustered_share.py          share groups there
    clustered_transactions.py   transactions there
    spoiled_run.py              one seed of a cluster whose disks are damaged
    spoiled_clients.py          transactions and share groups there

Each module with `run` in its name has one seed of a workload, from its start to the last check.
"""
