"""A look into a checkpoint before a query is started on it, so that what is wrong with it is said with the file's name.

Knows: the directory that a streaming query keeps (metadata, offsets/N, commits/N) as Spark 4.3 writes it, on a local
disk; of others Spark itself tells. Does not know: state stores, nor how a query is run.
Invariant: reads only; a checkpoint that Spark would take is never refused, except for topics of another query's.
Source: OffsetSeqLog, CommitLog and HDFSMetadataLog of Spark 4.3.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from ottla.spark.failures import PipelineFailed

VERSIONS = {"offsets": 2, "commits": 2}
"""The newest format of each log that Spark 4.3 reads."""

ANEW = "Give another --checkpoint, or remove it to begin anew."


def local_path(checkpoint: str) -> Path | None:
    """The directory on this machine; None where it is on another file system."""
    place = urlparse(checkpoint)
    if place.scheme == "file":
        return Path(unquote(place.path))
    return None if re.match(r"[a-zA-Z][\w+.-]+:/", checkpoint) else Path(checkpoint)


def examine(checkpoint: str, topics: Sequence[Iterable[str] | re.Pattern[str] | None]) -> None:
    """Raise PipelineFailed where a query on these sources can't go on from this checkpoint.

    `topics`: for each source of the query the topics it reads, or their pattern, or None where that is not known."""
    path = local_path(checkpoint)
    if path is None:
        return
    try:
        whole = directory(path)
        if whole:
            check_offsets(path, topics)
    except OSError as error:
        raise PipelineFailed(
            f"The checkpoint file {error.filename or path} can't be read: {error.strerror or error}."
        ) from None


def directory(path: Path) -> bool:
    """Whether a query has kept something there. Raises where it is no directory or its identity is lost."""
    for each in (path, *path.parents):
        if each.exists():
            if not each.is_dir():
                raise PipelineFailed(
                    f"The checkpoint {path} can't be kept: {each} is a file. Give another --checkpoint."
                )
            break
    kept = [each for each in ("offsets", "commits") if numbers(path / each)]
    metadata = path / "metadata"
    if not metadata.exists():
        if kept:
            raise PipelineFailed(
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
    """JSON, an object with `field` where one is named. Raises where the file does not hold it."""
    try:
        value = json.loads(text)
        if field is not None:
            value[field]
    except (ValueError, TypeError, KeyError):
        raise PipelineFailed(
            f"The checkpoint file {file} is damaged. Restore it from a copy, or give another --checkpoint."
        ) from None
    return value


def entry(file: Path, log: str) -> list[bytes]:
    """The lines of a log's file below its version."""
    version, *lines = file.read_bytes().split(b"\n")
    if not re.fullmatch(rb"v\d+", version):
        parsed(file, b"")
    if int(version[1:]) > VERSIONS[log]:
        raise PipelineFailed(
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
    """That the sources' offsets are of topics that the query reads."""
    if not topics or any(expected is None for expected in topics):
        return
    for offsets in sources:
        if not isinstance(offsets, dict) or not all(isinstance(each, dict) for each in offsets.values()):
            raise PipelineFailed(f"The checkpoint {path} is that of another query: {file} holds no topics. {ANEW}")
        strange = [name for name in offsets if not any(reads(name, each) for each in topics if each is not None)]
        if strange:
            raise PipelineFailed(
                f"The checkpoint {path} is that of a query on other topics: {file} names {', '.join(sorted(strange))}. "
                f"{ANEW}"
            )


def reads(topic: str, expected: Iterable[str] | re.Pattern[str]) -> bool:
    if isinstance(expected, re.Pattern):
        return expected.fullmatch(topic) is not None
    return topic in set(expected)


def kept_partitions(checkpoint: str) -> int | None:
    """The number of shuffle partitions that the checkpoint's state is split in; None where there is none yet."""
    path = local_path(checkpoint)
    if path is None or not (path / "state").is_dir():
        return None
    for number in numbers(path / "offsets")[-1:]:
        lines = entry(path / "offsets" / str(number), "offsets")
        conf = json.loads(lines[0]).get("conf", {})
        kept = conf.get("spark.sql.shuffle.partitions")
        return int(kept) if kept else None
    return None
