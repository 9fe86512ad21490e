"""The other shell: the node under a simulated clock, disk and network, with faults, from one seed.

    clock.py      time and what happens when              disk.py       the file system, and what it may forget
    network.py    connections, and how they break         world.py      drives one node, kills it, starts it again
    trace.py      what happened, and its hash             client.py     one client process
    batches.py    record batches, written anew            kafka.py      requests and answers of any Kafka client
    producers.py  consumers.py  readers.py  committers.py  admins.py    who is there
    workload.py   who is there in this run                faults.py     what goes wrong, and how it heals
    history.py    what clients were told                  checkers.py   what must hold inside, and the audit
    run.py        one seed, from start to reckoning       __main__.py   `python -m ottla.sim`

One run is one seed: safety under faults, liveness after they heal, then a reckoning. A run's trace has the same hash
wherever it runs. Models: TigerBeetle's VOPR, FoundationDB's simulation.
"""
