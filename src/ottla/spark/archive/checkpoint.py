"""What Spark keeps of a query in its checkpoint: its id, and where each batch ends.

Knows the files `metadata` and `offsets/N` of a checkpoint, read with Hadoop's file systems, as Spark does, so that a
checkpoint may lie wherever Spark can have it. One file there is ours: `archive-start.json`, where batch 0 begins, which
Spark does not write down.
Source: OffsetSeqLog.scala, StreamMetadata.scala of Spark 4.3.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from ottla.spark.archive.ranges import Place
from ottla.spark.failures import PipelineFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START = "archive-start.json"


class Checkpoint:
    """The checkpoint of one query."""

    def __init__(self, session: SparkSession, path: str) -> None:
        self.path = path
        self._jvm: Any = cast(Any, session)._jvm
        self._conf = cast(Any, session)._jsc.hadoopConfiguration()

    def query(self) -> str:
        """The id of the query, the same for as long as the checkpoint is."""
        text = self._text("metadata")
        if text is None:
            raise PipelineFailed(f"The checkpoint {self.path} has lost its metadata: the query's id is not known.")
        return str(json.loads(text)["id"])

    def ends(self, batch: int) -> dict[Place, int] | None:
        """Where a batch ends in each partition; None where it was not planned. Batch -1 is where the query began."""
        if batch < 0:
            text = self._text(START)
            return None if text is None else offsets_of(json.loads(text))
        text = self._text(f"offsets/{batch}")
        if text is None:
            return None
        try:
            (_, _, offsets) = text.splitlines()
            return offsets_of(json.loads(offsets))
        except ValueError:
            raise PipelineFailed(
                f"The checkpoint {self.path} can't be read: offsets/{batch} is damaged. Remove the checkpoint: "
                "the archive then goes on from where its table ends."
            ) from None

    def last(self) -> int:
        """The last batch that was planned, -1 where none was."""
        folder = self._path("offsets")
        files = folder.getFileSystem(self._conf)
        if not files.exists(folder):
            return -1
        names = [str(each.getPath().getName()) for each in files.listStatus(folder)]
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def begin(self, offsets: Mapping[Place, int]) -> None:
        """Write down where batch 0 begins."""
        content: dict[str, dict[str, int]] = {}
        for (topic, partition), offset in sorted(offsets.items()):
            content.setdefault(topic, {})[str(partition)] = offset
        path = self._path(START)
        stream = path.getFileSystem(self._conf).create(path, True)
        stream.write(bytearray(json.dumps(content).encode()))
        stream.hsync()
        stream.close()

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self.path.rstrip("/"), name)

    def _text(self, name: str) -> str | None:
        path = self._path(name)
        files = path.getFileSystem(self._conf)
        if not files.exists(path):
            return None
        stream = files.open(path)
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream)).decode()
        finally:
            stream.close()


def offsets_of(found: Mapping[str, Mapping[str, int]]) -> dict[Place, int]:
    """{"topic": {"0": 123}} by place."""
    return {(topic, int(number)): offset for topic, each in found.items() for number, offset in each.items()}
