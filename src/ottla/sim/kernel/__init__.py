"""The simulated world: time and what happens when, the disk and what it may forget, the network and how it breaks.

clock.py    time and what happens when           disk.py   the file system, and what it may forget
network.py  connections, and how they break      world.py  drives one node, kills it, starts it again
trace.py    what happened, and its hash
"""
