"""How a partition's directory goes: renamed first, so that no restart takes what is left of it for a log.

Source: Kafka's LocalLog.scala (logDeleteDirName): the directory's name is cut so that the new one fits.
"""

from __future__ import annotations

import contextlib
from typing import Final

from ottla.log.checkpoints import PARTITION_METADATA_FILE
from ottla.log.files import FileSystem

FILE_NAME_MAX: Final = 255
"""Bytes that the name of a file or directory may have on every usual file system."""
GRAVE_SUFFIX: Final = "-delete"


def fitting(name: str, suffix: str) -> str:
    """A directory's name with a suffix, cut so that a file system takes it; its partition's number stays."""
    topic, dash, partition = name.rpartition("-")
    tail = f"{dash}{partition}{suffix}"
    return topic[: FILE_NAME_MAX - len(tail)] + tail


def remove_partition(files: FileSystem, directory: str, topic_id: bytes) -> None:
    """Remove a partition's directory and all in it. Raises OSError; what an attempt left, the next one removes."""
    parent, _, name = directory.rpartition("/")
    grave = f"{parent}/{fitting(name, f'.{topic_id.hex()}{GRAVE_SUFFIX}')}"
    if files.exists(directory):
        try:
            files.rename(directory, grave)
        except OSError:  # perhaps names are shorter here: it goes from where it is, and says to the last whose it is
            for entry in files.listdir(directory):
                if entry != PARTITION_METADATA_FILE:
                    files.unlink(f"{directory}/{entry}")
            files.rmtree(directory)
        files.sync_directory(parent or ".")
    with contextlib.suppress(FileNotFoundError):
        files.rmtree(grave)
