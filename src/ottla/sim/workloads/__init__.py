"""Runs simulations: the clients, the faults and their repair, and the checks.

workload.py  share_workload.py   the clients, and how the node is configured
run.py       share_run.py        one seed, from its start to the last check
faults.py                        the faults, their times, and their repair
checkers.py                      the invariants inside the node, and the audit
"""
