"""One Spark session for each worker, one broker per module, a topic of its own for each test."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ottla.testing import EmbeddedBroker

pytest.importorskip("pyspark", reason="needs the extra spark")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REAL_LOGS = Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """local[2] with the pipelines' own settings; a JVM takes seconds to start, so a worker has one."""
    from ottla.spark.platform.session import pipeline_session

    session = pipeline_session("ottla-tests", master="local[2]", conf={"spark.driver.memory": "1g"})
    yield session
    session.stop()


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(settings={"auto.create.topics.enable": "false"}) as running:
        yield running


@pytest.fixture
def topic() -> str:
    """A name nobody else has; make the topic with `broker.create_topic(topic, partitions=...)`."""
    return f"t-{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def real_logs() -> Path:
    """The folder of real logs (`activity/`, `logs/`), where it lies beside the checkout."""
    if not REAL_LOGS.is_dir():
        pytest.skip("the folder of real logs is not beside this checkout")
    return REAL_LOGS
