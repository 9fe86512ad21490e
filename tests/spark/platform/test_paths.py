"""Paths and URIs, as Spark takes both."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.spark.platform.failures import PipelineFailedError
from ottla.spark.platform.paths import local_path, table_path


@pytest.mark.parametrize(
    ("given", "local"),
    [
        ("lake/a b", "lake/a b"),
        ("/lake/100%25", "/lake/100%25"),
        ("file:/lake/a%20b", "/lake/a b"),
        ("file:///lake", "/lake"),
        ("file://localhost/lake", "/lake"),
        ("file://elsewhere/lake", None),
        ("hdfs://name/lake", None),
        ("s3a://bucket/lake", None),
    ],
)
def test_where_a_path_lies(given: str, local: str | None) -> None:
    assert local_path(given) == (None if local is None else Path(local))


def test_a_table_lies_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert table_path("lake") == table_path(f"file:{tmp_path}/lake") == tmp_path.resolve() / "lake"
    with pytest.raises(PipelineFailedError, match="mounted on every machine of the cluster, not at s3a://bucket/lake"):
        table_path("s3a://bucket/lake")
