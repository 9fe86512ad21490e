"""Converts a table's columns from Spark's DDL to Arrow's types. Spark's own parser of DDL needs a session."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

TYPES: Mapping[str, pa.DataType] = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "map<string,bigint>": pa.map_(pa.string(), pa.int64()),
}


def arrow_schema(ddl: str) -> pa.Schema:
    """Return the columns as an Arrow schema."""
    columns = [each.split() for each in ddl.split(", ")]
    return pa.schema([(name, TYPES[kind]) for name, kind in columns])
