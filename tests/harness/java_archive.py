"""Keeps an archive of the classes that Spark loads, with which every Java of the tests starts in half the CPU.

    python -m tests.harness.java_archive             # some 20 s of CPU where it is missing

Java maps it instead of reading, checking and linking ten thousand classes from jars; an archive of another Java, of
other jars or of none is passed over. The nursery makes it in the first run of all tests. Source: JEP 350.
"""

import os
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parents[2]
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""What Java is told in tests: code that runs for seconds is not worth compiling twice. Halves the CPU of a JVM."""
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
    """What Java is told in tests: to be quick, where temporary files are (it does not read TMPDIR), and to use the
    archive if it is there."""
    archive = place()
    kept = "" if archive is None else f" -XX:SharedArchiveFile={archive} {SILENT}"
    return f"{QUICK} -Djava.io.tmpdir={tempfile.gettempdir()}{kept}"


def make(archive: Path) -> None:
    """Run what most pipelines run, and let Java write down what it has loaded."""
    made = archive.with_name(f"{archive.name}.{os.getpid()}")
    os.environ["JAVA_TOOL_OPTIONS"] = f"{QUICK} -XX:ArchiveClassesAtExit={made} {SILENT}"
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
    missing = place()
    if missing is not None and not missing.exists():
        make(missing)
