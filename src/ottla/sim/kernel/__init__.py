"""Simulates the world: time and events, hosts with their disks and clocks, the network and its faults.

    world.py     the state that everything in a run shares
    host.py      a machine: drives, kills and restarts its node
    clock.py     time, and the hosts' clocks
    disk.py      the file system, and what it may forget
    spoiling.py  damage to files: flipped bits, cut, lost or older files
    store.py     the metadata store
    network.py   connections, paths, their faults
    faults.py    the faults of a host and of paths
    trace.py     the events, and their hash

Nothing here knows Kafka's protocol, or what a workload checks.
"""
