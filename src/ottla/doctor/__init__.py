"""Says what is wrong with a cluster, or soon will be, and what helps: on Ottla and on any Kafka.

`gather` makes snapshots of a cluster, the checks compare two of them, and `diagnose` orders the findings. A check is a
pure function, so that each has a test with a fault just above its threshold and one just below it.
"""

from ottla.doctor.checks import CHECKS
from ottla.doctor.diagnosis import Diagnosed, diagnose
from ottla.doctor.finding import Check, Finding, Severity
from ottla.doctor.gather import gather
from ottla.doctor.snapshot import Evidence, Snapshot

__all__ = ["CHECKS", "Check", "Diagnosed", "Evidence", "Finding", "Severity", "Snapshot", "diagnose", "gather"]
