"""How Spark finds `format("ottla")` without an import: it looks through every top-level module named `pyspark_*` for a
class `DefaultSource` (python/pyspark/sql/worker/lookup_data_sources.py). All there is to it is in `ottla.spark`.
"""

from ottla.spark.format import OttlaSource


class DefaultSource(OttlaSource):
    """`format("ottla")`; see `ottla.spark.format.OttlaSource`."""
