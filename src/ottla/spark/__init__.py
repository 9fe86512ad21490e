"""Pipelines on Spark: topics to DataFrames and back. Speaks Kafka, never imports the broker.

To import it names this Python to Spark's workers, unless PYSPARK_PYTHON names one: without an environment that is
activated Spark would start whichever `python3` is on the PATH, which knows nothing of Ottla.
"""

import os
import sys

if sys.executable:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
