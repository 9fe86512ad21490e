"""Writes files that exist, complete, after a power cut."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path


def write_json(path: Path, content: object) -> None:
    """Replace a file as a whole: readers see the old content or the new, also after a power cut. A kill may leave
    PATH.xxxx.tmp."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    with part.open("w") as file:
        file.write(json.dumps(content, separators=(",", ":")))
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    sync_folder(path.parent)


def sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
