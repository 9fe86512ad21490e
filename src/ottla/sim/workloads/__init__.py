"""Runs: who is there, what goes wrong and how it heals, what must hold.

workload.py   who is there in a run of the log            run.py        one seed, from start to reckoning
share_run.py  both, with share groups                     faults.py     what goes wrong, and how it heals
checkers.py   what must hold inside, and the audit
"""
