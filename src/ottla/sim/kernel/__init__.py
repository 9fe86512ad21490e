"""The simulated world: time and what happens when, hosts with their disks and clocks, the network and how it breaks.

world.py    what everything in a run shares         host.py    a machine: drives its node, kills it, starts it again
clock.py    time, and what the hosts' clocks show   disk.py    the file system, and what it may forget
network.py  connections, paths, how they break      faults.py  what goes wrong with a host and with paths
trace.py    what happened, and its hash
"""
