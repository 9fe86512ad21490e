"""Pipelines on Spark: topics to DataFrames and back. Speaks Kafka, never imports the broker.

Importing this package sets PYSPARK_PYTHON to this Python, unless it is set. Otherwise, without an activated
environment, Spark's workers would run whichever `python3` is on the PATH, which lacks Ottla.
"""

import os
import sys

if sys.executable:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
