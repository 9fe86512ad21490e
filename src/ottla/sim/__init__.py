"""Simulates the node under a simulated clock, disk and network, with faults, from one seed: the second I/O host.

    kernel/       the world: time, the network, hosts with a disk, a clock and a node each; knows nothing of Kafka
    clients/      simulated client processes that speak Kafka, and their histories, checked against the promises
    workloads/    one run: the clients, the faults, the checks
    __main__.py   `python -m ottla.sim`

It is a tool of the repository: the wheel leaves it out, and no module outside this package imports it.

Imports go one way: workloads -> clients -> kernel. One run is one seed: safety under faults, liveness after they heal,
then the last checks at rest. A run's trace has the same hash wherever it runs.

Models: TigerBeetle's VOPR, FoundationDB's simulation.
"""
