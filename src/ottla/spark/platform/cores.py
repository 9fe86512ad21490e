"""Finds out how many tasks run at once, as far as a Python process of Spark's can know.

Neither the session's settings nor `defaultParallelism` reach the process that plans a Python source. In local mode, the
command line of the parent JVM contains the master. On a cluster, it does not contain the number of cores.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

ANCESTORS_MAX = 4
"""Planner, daemon, JVM; one to spare."""
_LOCAL = re.compile(r"(?:--master\s+|spark\.master=)local(?:\[(\*|\d+)(?:,\s*\d+)?\])?(?:\s|$)")


@cache
def local_cores() -> int | None:
    """The cores of a local master; None on a cluster, and where it cannot be found out."""
    pid = os.getpid()
    for _ in range(ANCESTORS_MAX):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return None
        if "org.apache.spark.deploy.SparkSubmit" in words:
            return cores_of(words)
    return None


def cores_of(command_line: str) -> int | None:
    """`local` is one core, `local[4]` four, `local[*]` all of this machine's."""
    match = _LOCAL.search(command_line)
    if match is None:
        return None
    return len(os.sched_getaffinity(0)) if match[1] == "*" else int(match[1] or 1)
