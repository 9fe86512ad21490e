"""Benchmarks: programs that run from a checkout, against this machine only. docs/benchmarks.md says how to read them.

node/         a whole node, from outside: `python -m bench.node`
secure/       TLS, logins and ACLs, beside an Apache Kafka: `python -m bench.secure`
queues/       share groups, KMQ, and other queues: `python -m bench.queues`
spark/        pipelines: `python -m bench.spark`, and `bench.spark.tracker`, `.activity` and `.logs`
console.py    what the console's open pages cost a node, and the console's memory: `python -m bench.console`
micro.py      the hot functions, in one process
peer.py       a node beside an Apache Kafka, by an independent program; its table goes to RESULTS.md

program.py    what the programs have in common: their options, what is picked, the run and what it tells
figures.py    figures, rounds in turns, medians, ratios
brokers.py    brokers by address, and nodes that a benchmark starts itself
frames.py     raw load: frames built once and sent pipelined
machine.py    where it was measured
"""
