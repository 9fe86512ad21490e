"""Starts Spark's Python workers from a process that has imported what they import.

PySpark's own daemon forks workers that then import pandas and pyarrow by themselves. That takes each of them a quarter
of a second of CPU before its first task.

Invariant: no worker needs a thread that the fork lost. PySpark's daemon imports nothing before it forks, because some
imports start threads. These start two. OpenBLAS ends its own before each fork, and starts it again when it computes.
The other one returns memory to the system for Arrow's jemalloc, which works without it in a fork.

Source: PySpark's daemon.py, PythonWorkerFactory.scala (`python -m DAEMON WORKER`).
"""

import gc
import sys
from importlib import import_module

from pyspark.daemon import manager

IMPORTED = ("pandas", "pyarrow", "ottla.spark.reader.source")
"""Modules that most tasks of pipelines import."""


if __name__ == "__main__":
    if sys.argv[1:] == ["pyspark.worker"]:  # other daemons fork for one short call each, which imports less
        for module in IMPORTED:
            import_module(module)
        gc.freeze()  # a worker collects garbage after each task; what all workers share is none
    manager()
