"""Runs: who is there, what goes wrong and how it heals, what must hold.

workload.py  share_workload.py   who is there, and how the node is configured
run.py       share_run.py        one seed, from its start to the last check
faults.py                        what goes wrong, when, and how it heals
checkers.py                      what must hold inside, and the audit
"""
