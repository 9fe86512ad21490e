"""Finds where what Spark calls a path, or a URI, lies on this machine."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ottla.spark.platform.failures import OptionsRefusedError


def local_path(path: str | Path) -> Path | None:
    """The path on this machine; None where it is on another file system."""
    text = str(path)
    parts = urlsplit(text)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return Path(unquote(parts.path))
    return None if re.match(r"[a-zA-Z][\w+.-]+:/", text) else Path(text)


def table_path(path: str | Path) -> Path:
    """A table's directory, absolute. Raises PipelineFailedError where it is on another file system."""
    local = local_path(path)
    if local is None:
        raise OptionsRefusedError(
            f"A table must lie on a file system that is mounted on every machine of the cluster, not at {path}."
        )
    return local.resolve()
