"""The other shell: the node under a simulated clock, disk and network, with faults, from one seed.

    kernel/      the world: time, the network, hosts with a disk, a clock and a node each; knows nothing of Kafka
    clients/     simulated client processes that speak Kafka, and what they were told, held against the promises
    workloads/   one run: who is there, what goes wrong, what must hold
    __main__.py  `python -m ottla.sim`

It is a tool of the repository: the wheel leaves it out, and nothing outside this package imports it.

Imports go one way: workloads -> clients -> kernel. One run is one seed: safety under faults, liveness after they heal,
then the last checks at rest. A run's trace has the same hash wherever it runs.
Models: TigerBeetle's VOPR, FoundationDB's simulation.
"""
