"""Archives every record of chosen topics in a lake table, each exactly once, and brings them back.

`run` archives, `verify` proves, `restore` writes a topic, a table's `compact` and `vacuum` keep the files in order,
`read` gives a DataFrame. Delta tables by the native `deltalake`, or plain Parquet; see docs/pipelines/archive.md.
"""

from ottla.spark.archive.opening import make_table, open_table
from ottla.spark.archive.reading import read
from ottla.spark.archive.restore import Restored, restore
from ottla.spark.archive.stream import Archived, run
from ottla.spark.archive.table import ArchiveSettings, Table
from ottla.spark.archive.verification import Checked, Verdict, verify

__all__ = [
    "ArchiveSettings",
    "Archived",
    "Checked",
    "Restored",
    "Table",
    "Verdict",
    "make_table",
    "open_table",
    "read",
    "restore",
    "run",
    "verify",
]
