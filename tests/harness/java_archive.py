"""Keeps an archive of the classes that Spark loads, with which every Java of the tests starts in half the CPU.

    python -m tests.harness.java_archive PATH        # some 20 s of CPU

Java maps it instead of reading, checking and linking ten thousand classes from jars; an archive of another Java, of
other jars or of none is passed over. `./test` makes it beside its first run. Source: JEP 350.
"""

import os
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parents[2]
SILENT = "-Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"


def place() -> Path | None:
    """Where the archive for this Spark is, or is to be; None where there is no Spark or no `.venv` to keep it in."""
    try:
        name = f"spark-{version('pyspark')}.jsa"
    except PackageNotFoundError:
        return None
    home = TOP / ".venv"
    return home / name if home.is_dir() else None


def options() -> str:
    """What tells a Java to use the archive once it is there."""
    archive = place()
    return "" if archive is None else f"-XX:SharedArchiveFile={archive} {SILENT}"


def begin_to_make() -> subprocess.Popen[bytes] | None:
    """Make the archive in another process where it is missing."""
    archive = place()
    if archive is None or archive.exists():
        return None
    return subprocess.Popen(
        [sys.executable, "-m", "tests.harness.java_archive", str(archive)],
        cwd=TOP,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def make(archive: Path) -> None:
    """Run what most pipelines run, and let Java write down what it has loaded."""
    made = archive.with_name(f"{archive.name}.{os.getpid()}")
    given = [each for each in os.environ.get("JAVA_TOOL_OPTIONS", "").split() if "SharedArchiveFile" not in each]
    os.environ["JAVA_TOOL_OPTIONS"] = " ".join([*given, f"-XX:ArchiveClassesAtExit={made}", SILENT])
    from pyspark import SparkContext

    from ottla.spark.platform.session import pipeline_session

    session = pipeline_session("archive", master="local[2]", conf={"spark.driver.memory": "1g"})
    with tempfile.TemporaryDirectory() as directory:
        session.range(10).selectExpr("id", "id % 3 AS k").write.parquet(f"{directory}/table")
        read = session.read.parquet(f"{directory}/table").groupBy("k").count()
        read.toPandas()
        stream = session.readStream.format("rate").load().withWatermark("timestamp", "1 second")
        counted = stream.groupBy("timestamp").count()
        query = counted.writeStream.foreachBatch(looked_at).trigger(once=True)
        query.option("checkpointLocation", f"{directory}/checkpoint").start().awaitTermination()
        session.stop()
    gateway: Any = SparkContext._gateway  # it ends when nobody writes to it any more
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
    if made.exists():
        made.replace(archive)
    else:
        archive.touch()  # this Java makes none: it is not asked again, and passes over what is empty


def looked_at(rows: Any, batch: int) -> None:
    rows.collect()


if __name__ == "__main__":
    make(Path(sys.argv[1]))
