"""Defines `format("ottla")`, the data source from which Spark makes readers and writers.

`reader/source.py` and `writer/sink.py` implement these. `pyspark_ottla` makes Spark find the data source.
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from ottla.spark.reader.options import any_options
from ottla.spark.reader.source import batch_reader, columns_of, stream_reader


class OttlaSource(DataSource):
    """Kafka topics as DataFrames and back, without a JVM jar: Ottla, Apache Kafka, Redpanda."""

    @classmethod
    def name(cls) -> str:
        return "ottla"

    def schema(self) -> StructType:
        """Return the columns. Spark calls this in `load()`, so invalid options are refused at that point."""
        return columns_of(any_options(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        return batch_reader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return stream_reader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from ottla.spark.writer.sink import batch_writer  # readers do not need it

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from ottla.spark.writer.sink import stream_writer

        return stream_writer(self.options, schema, overwrite)
