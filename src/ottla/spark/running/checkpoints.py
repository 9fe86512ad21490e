"""Reads what Spark keeps of a query in its checkpoint: its id, and where each batch ends.

`examine` checks a checkpoint on a local disk before a query starts on it, so that an error names the file. Spark itself
reports errors in other checkpoints. A `Checkpoint` is read while the query runs, through Hadoop's file systems.

A checkpoint is the directory of a streaming query (metadata, offsets/N, commits/N) as Spark 4.3 writes it. Ottla adds
one file, `archive-start.json`: the offsets at which an archive's batch 0 begins, which Spark does not store.

Invariant: Spark's files are only read. A checkpoint that Spark would accept is never refused, unless it has topics of
another query.

Source: OffsetSeqLog, CommitLog, HDFSMetadataLog and StreamMetadata of Spark 4.3.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ottla.client import TopicPartition
from ottla.spark.platform.failures import PipelineFailedError
from ottla.spark.platform.paths import local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VERSIONS = {"offsets": 2, "commits": 2}
"""The newest format of each log that Spark 4.3 reads."""

ANEW = "Give another --checkpoint, or remove it to start from the beginning."

START = "archive-start.json"


def examine(checkpoint: str, topics: Sequence[Iterable[str] | re.Pattern[str] | None]) -> None:
    """Raise PipelineFailedError if a query on these sources cannot resume from this checkpoint.

    `topics`: for each source of the query its topics, or their pattern, or None if that is unknown.
    """
    path = local_path(checkpoint)
    if path is None:
        return
    try:
        whole = directory(path)
        if whole:
            check_offsets(path, topics)
    except OSError as error:
        raise PipelineFailedError(
            f"The checkpoint file {error.filename or path} can't be read: {error.strerror or error}."
        ) from None


def directory(path: Path) -> bool:
    """Whether a query has stored something there. Raises PipelineFailedError if it is no directory, or if its identity
    is lost."""
    for each in (path, *path.parents):
        if each.exists():
            if not each.is_dir():
                raise PipelineFailedError(
                    f"The checkpoint {path} can't be kept: {each} is a file. Give another --checkpoint."
                )
            break
    kept = [each for each in ("offsets", "commits") if numbers(path / each)]
    metadata = path / "metadata"
    if not metadata.exists():
        if kept:
            raise PipelineFailedError(
                f"The checkpoint {path} has lost its file {metadata}. "
                "Restore it from a copy, or give another --checkpoint."
            )
        return False
    parsed(metadata, metadata.read_bytes(), "id")
    return bool(kept)


def numbers(log: Path) -> list[int]:
    """The batches that a log has files of, oldest first."""
    if not log.is_dir():
        return []
    return sorted(int(each.name) for each in log.iterdir() if each.name.isdigit())


def parsed(file: Path, text: bytes, field: str | None = None) -> Any:
    """JSON, an object with `field` if one is named. Raises PipelineFailedError if the file does not contain it."""
    try:
        value = json.loads(text)
        if field is not None:
            value[field]
    except (ValueError, TypeError, KeyError):
        raise PipelineFailedError(
            f"The checkpoint file {file} is damaged. Restore it from a copy, or give another --checkpoint."
        ) from None
    return value


def entry(file: Path, log: str) -> list[bytes]:
    """The lines of a log's file below its version. Raises PipelineFailedError."""
    version, *lines = file.read_bytes().split(b"\n")
    if not re.fullmatch(rb"v\d+", version):
        parsed(file, b"")
    if int(version[1:]) > VERSIONS[log]:
        raise PipelineFailedError(
            f"The checkpoint file {file} was written by a newer Spark ({version.decode()}; this one reads up to "
            f"v{VERSIONS[log]}). Run the pipeline with that one, or give another --checkpoint."
        )
    return lines


def check_offsets(path: Path, topics: Sequence[Iterable[str] | re.Pattern[str] | None]) -> None:
    """The files that a start reads: the last commit and the last two plans."""
    for number in numbers(path / "commits")[-1:]:
        file = path / "commits" / str(number)
        parsed(file, b"\n".join(entry(file, "commits")))
    for number in numbers(path / "offsets")[-2:]:
        file = path / "offsets" / str(number)
        lines = entry(file, "offsets")
        parsed(file, lines[0] if lines else b"")
        if file.read_bytes()[:2] == b"v1":  # v2 names its sources and has a shape of its own
            sources = [parsed(file, line) for line in lines[1:] if line != b"-"]
            check_topics(path, file, sources, topics)


def check_topics(
    path: Path, file: Path, sources: list[Any], topics: Sequence[Iterable[str] | re.Pattern[str] | None]
) -> None:
    """Check that the sources' offsets are of topics that the query reads. Raises PipelineFailedError."""
    if not topics or any(expected is None for expected in topics):
        return
    for offsets in sources:
        if not isinstance(offsets, dict) or not all(isinstance(each, dict) for each in offsets.values()):
            raise PipelineFailedError(f"The checkpoint {path} is that of another query: {file} holds no topics. {ANEW}")
        strange = [name for name in offsets if not any(reads(name, each) for each in topics if each is not None)]
        if strange:
            raise PipelineFailedError(
                f"The checkpoint {path} is that of a query on other topics: {file} names {', '.join(sorted(strange))}. "
                f"{ANEW}"
            )


def reads(topic: str, expected: Iterable[str] | re.Pattern[str]) -> bool:
    if isinstance(expected, re.Pattern):
        return expected.fullmatch(topic) is not None
    return topic in set(expected)


def kept_partitions(checkpoint: str) -> int | None:
    """Return the number of shuffle partitions of the checkpoint's state; None if it has no state yet."""
    path = local_path(checkpoint)
    if path is None or not (path / "state").is_dir():
        return None
    for number in numbers(path / "offsets")[-1:]:
        lines = entry(path / "offsets" / str(number), "offsets")
        conf = json.loads(lines[0]).get("conf", {})
        kept = conf.get("spark.sql.shuffle.partitions")
        return int(kept) if kept else None
    return None


class Checkpoint:
    """The checkpoint of one query, read as Spark reads it, so that it may be on any file system of Spark's."""

    def __init__(self, session: SparkSession, path: str) -> None:
        self.path = path
        self._jvm: Any = cast(Any, session)._jvm
        self._conf = cast(Any, session)._jsc.hadoopConfiguration()

    def query(self) -> str:
        """The id of the query, the same for as long as the checkpoint is. Raises PipelineFailedError."""
        text = self._text("metadata")
        if text is None:
            raise PipelineFailedError(f"The checkpoint {self.path} has lost its metadata: the query's id is not known.")
        return str(json.loads(text)["id"])

    def ends(self, batch: int) -> dict[TopicPartition, int] | None:
        """Return the end of a batch in each partition; None if it was not planned. Batch -1 is the query's start.
        Raises PipelineFailedError."""
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
            raise PipelineFailedError(
                f"The checkpoint {self.path} can't be read: offsets/{batch} is damaged. Remove the checkpoint: "
                "the archive then continues from the end of its table."
            ) from None

    def last(self) -> int:
        """The last batch that was planned, -1 where none was."""
        folder = self._path("offsets")
        files = folder.getFileSystem(self._conf)
        if not files.exists(folder):
            return -1
        names = [str(each.getPath().getName()) for each in files.listStatus(folder)]
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def begin(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Store where batch 0 begins."""
        content: dict[str, dict[str, int]] = {}
        for (topic, partition), offset in sorted(offsets.items()):
            content.setdefault(topic, {})[str(partition)] = offset
        path = self._path(START)
        stream = path.getFileSystem(self._conf).create(path, True)
        stream.write(bytearray(json.dumps(content).encode()))
        stream.hsync()
        stream.close()

    def put_aside(self) -> None:
        """Rename the checkpoint, if it exists, so that the query starts from the beginning: DIR becomes DIR.1, or the
        next free number. Raises PipelineFailedError."""
        mine = self._path("")
        files = mine.getFileSystem(self._conf)
        if not files.exists(mine):
            return
        number = 1
        while files.exists(aside := mine.suffix(f".{number}")):
            number += 1
        if not files.rename(mine, aside):
            raise PipelineFailedError(f"The checkpoint {self.path} can't be renamed. Give another --checkpoint.")

    def _path(self, name: str) -> Any:
        whole = self._jvm.org.apache.hadoop.fs.Path(self.path.rstrip("/"))
        return self._jvm.org.apache.hadoop.fs.Path(whole, name) if name else whole

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


def offsets_of(found: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    """{"topic": {"0": 123}} by place."""
    return {(topic, int(number)): offset for topic, each in found.items() for number, offset in each.items()}
