"""Starts Spark's sessions, and decides their settings and what may override them.

Precedence of settings, the highest first:

1. `conf` of the call;
2. the user's spark-defaults.conf and the arguments of `spark-submit`;
3. the table below, with the reason for each setting;
4. Spark's own defaults.

A session that is already running is used as it is. Only settings that can change at run time, and that the user has not
set, are added.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING

from ottla.spark.platform.failures import PipelineFailedError
from ottla.spark.platform.java import use_java
from ottla.spark.platform.linked_homes import stand_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STREAMING = "org.apache.spark.sql.execution.streaming"
CLUSTER_PARTITIONS = 16
TASK_FAILURES_MAX = 4
LOCAL = re.compile(r"local(?:\[(?P<threads>\*|\d+)(?:,(?P<failures>\d+))?\])?")


@dataclass(frozen=True, slots=True)
class Setting:
    """One of Spark's settings as pipelines want it. `only_local`: on a cluster Spark's own default is right."""

    key: str
    value: str
    why: str
    only_local: bool = False


def settings(master: str) -> tuple[Setting, ...]:
    """The table, for a master."""
    cores = cores_of(master)
    return (
        Setting(
            "spark.sql.streaming.stateStore.providerClass",
            f"{STREAMING}.state.RocksDBStateStoreProvider",
            "state beyond the memory of the JVM; `transformWithState` refuses any other",
        ),
        Setting(
            "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled",
            "true",
            "a batch uploads its changes instead of a snapshot of the whole state",
        ),
        Setting(
            "spark.sql.shuffle.partitions",
            str(cores or CLUSTER_PARTITIONS),
            (
                "one per core (16 on a cluster) instead of 200, because each is a state store; the first "
                "checkpoint fixes the number"
            ),
        ),
        Setting(
            "spark.sql.streaming.checkpointFileManagerClass",
            f"{STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager",
            "a small batch takes a third less time on a local disk, and the rename is just as atomic",
            only_local=True,
        ),
        Setting(
            "spark.sql.streaming.stopTimeout",
            "60s",
            "a query that does not stop is reported instead of waited for without end",
        ),
        Setting("spark.sql.execution.arrow.pyspark.enabled", "true", "rows are exchanged with Python in columns"),
        Setting("spark.sql.session.timeZone", "UTC", "days and hours mean the same on every machine"),
        Setting("spark.driver.memory", "2g", "Spark's default, 1g, is small for a driver that is also the executor"),
        Setting("spark.ui.enabled", "false", "opens no port that you did not ask for"),
        Setting("spark.ui.showConsoleProgress", "false", "Spark's progress bar would overwrite the pipeline's table"),
        Setting(
            "spark.python.daemon.module",
            "ottla.spark.running.python_daemon",
            "Python workers start with pandas and pyarrow imported, in 0.3 s of CPU less each",
            only_local=True,
        ),
        Setting(
            "spark.driver.bindAddress", "127.0.0.1", "only this machine needs to reach a local driver", only_local=True
        ),
        Setting(
            "spark.driver.host", "127.0.0.1", "works whatever address the machine's name resolves to", only_local=True
        ),
    )


def pipeline_session(
    app_name: str, *, master: str | None = None, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Return a session with the settings above, or the one that is already running.

    `master`: Spark's; by default that of spark-defaults.conf, otherwise `local[*]`. `conf` overrides everything. Local
    masters try a task four times as clusters do: a killed Python worker costs its task, not the query. Raises
    NoJavaError, and PipelineFailedError if Spark is missing or does not start.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise PipelineFailedError(
            'Spark is not installed. `pip install ".[spark]"` in a clone of Ottla installs it.'
        ) from None

    refuse_connect({**(conf or {}), **({"spark.master": master} if master else {})})
    running = SparkSession._instantiatedSession  # as Spark's builder; the active one may be that of a micro-batch
    if running is not None and running.sparkContext._jsc is not None:
        return adapted(running, conf or {})
    given = dict(conf or {})
    if master is not None:
        given["spark.master"] = master
    return started(app_name, given)


def refuse_connect(conf: Mapping[str, str]) -> None:
    """Raise PipelineFailedError if the session would be one of Spark Connect: it has no JVM that reports a query's
    state."""
    from pyspark.sql.utils import is_remote

    if is_remote() or "spark.remote" in conf or conf.get("spark.master", "").startswith("sc://"):
        raise PipelineFailedError(
            "Pipelines do not run through Spark Connect (SPARK_REMOTE, sc://...). Name the cluster itself: "
            "--master spark://HOST:PORT."
        )


def require_workers(session: SparkSession) -> None:
    """Raise PipelineFailedError if the workers of a local session use a Python without Ottla."""
    if is_local(str(session.sparkContext.master)):
        require_ottla(str(session.sparkContext.pythonExec))


@cache
def require_ottla(python: str) -> None:
    """Raise PipelineFailedError where a Python, by path or name, has no Ottla."""
    found = shutil.which(python)
    if found == sys.executable:
        return
    code = "import pyspark_ottla"
    if found is None or subprocess.run([found, "-c", code], capture_output=True, stdin=subprocess.DEVNULL).returncode:
        raise PipelineFailedError(
            f"Spark's workers run {found or python}, a Python without Ottla. Before the session is made, import "
            f"ottla.spark, or set PYSPARK_PYTHON={sys.executable}."
        )


def adapted(session: SparkSession, conf: Mapping[str, str]) -> SparkSession:
    """Return a running session, after adding the settings that can still change and that the user has not set."""
    chosen = session.conf.getAll
    master = str(session.sparkContext.master)
    wanted = {each.key: each.value for each in settings(master) if each.key not in chosen}
    for key, value in {**wanted, **conf}.items():
        if session.conf.isModifiable(key):
            session.conf.set(key, value)
    return session


def started(app_name: str, given: dict[str, str]) -> SparkSession:
    """A new session. Raises PipelineFailedError."""
    from pyspark.core.context import SparkContext
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    defaults = {**spark_defaults(os.environ), **submitted()}
    master = given.get("spark.master") or defaults.get("spark.master") or "local[*]"
    wanted = {each.key: each.value for each in settings(master) if is_local(master) or not each.only_local}
    wanted = {key: value for key, value in wanted.items() if key not in defaults} | given
    wanted["spark.master"] = with_retries(master)
    runs = SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ
    if runs:
        wanted.pop("spark.driver.memory", None)  # the JVM has what it was started with
        SparkContext._ensure_initialized()
    else:
        with quick_workers(master):
            launch(with_quiet_logs(wanted, defaults))
    builder = SparkSession.builder.appName(app_name)
    for key, value in wanted.items():
        builder = builder.config(key, value)
    try:
        with own_interrupt():
            session = builder.getOrCreate()
        if runs and own_log4j2(os.environ) is None and "spark.log.level" not in {**defaults, **given}:
            session.sparkContext.setLogLevel("ERROR")
        return session
    except PySparkException as error:
        raise PipelineFailedError(f"Spark does not start on {master}: {str(error).splitlines()[0]}") from error
    except Exception as error:  # py4j's, with Java's words in it
        said = re.search(r"^: (?:[\w.$]+: )?(.+)$", str(error), re.MULTILINE)
        raise PipelineFailedError(f"Spark does not start on {master}: {said[1] if said else error}") from error


@contextlib.contextmanager
def own_interrupt() -> Iterator[None]:
    """Keep the program's own handler of SIGINT. Spark's handler would replace it; that asks the JVM to cancel its jobs,
    on the connection that the interrupted call is waiting on."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if before not in (signal.default_int_handler, signal.getsignal(signal.SIGINT)):
            signal.signal(signal.SIGINT, before)


def with_quiet_logs(wanted: dict[str, str], defaults: Mapping[str, str]) -> dict[str, str]:
    """The settings, and where the JVM shall find how it logs."""
    if own_log4j2(os.environ) is not None:
        return wanted
    key = "spark.driver.extraJavaOptions"
    options = f"{wanted.get(key, defaults.get(key, ''))} -Dlog4j2.configurationFile={log4j2_uri()}"
    return {**wanted, key: options.strip()}


# ---- the JVM -------------------------------------------------------------------------------------------------------


def launch(conf: Mapping[str, str]) -> None:
    """Start the JVM in a process session of its own: Ctrl-C must reach the driver, and must not kill its workers.
    Raises PipelineFailedError."""
    from pyspark.conf import SparkConf
    from pyspark.core.context import SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    use_java()
    logging.getLogger().addFilter(not_from_py4j)
    logging.getLogger("SQLQueryContextLogger").disabled = True  # the same, as JSON with Java's stack in it
    spark_conf = SparkConf(loadDefaults=False)
    for key, value in conf.items():
        spark_conf.set(key, value)
    reading, writing = os.pipe()
    noise = threading.Thread(target=pass_on, args=(os.fdopen(reading, "rb"),), name="spark-stderr", daemon=True)
    noise.start()
    try:
        gateway = launch_gateway(spark_conf, {"stderr": writing, "start_new_session": True})
    except PySparkRuntimeError as error:
        raise PipelineFailedError(
            f"Spark's JVM did not start with JAVA_HOME={os.environ['JAVA_HOME']}; its output is above."
        ) from error
    finally:
        os.close(writing)
    SparkContext._ensure_initialized(gateway=gateway)


@contextlib.contextmanager
def quick_workers(master: str) -> Iterator[None]:
    """Make a local session's Python workers import PySpark from where it is installed, not from the archive in
    SPARK_HOME.

    Python compiles a module of an archive again in each process: half a second for every query that starts. A cluster
    may need the archive, and the user's own SPARK_HOME is left as it is.
    """
    if not is_local(master) or "SPARK_HOME" in os.environ:
        yield
        return
    import pyspark

    with contextlib.suppress(OSError):  # nowhere to make it: slower, and as right
        os.environ["SPARK_HOME"] = str(stand_in("spark", Path(pyspark.__file__).parent, without=["python"]))
    try:
        yield
    finally:
        os.environ.pop("SPARK_HOME", None)


def not_from_py4j(record: logging.LogRecord) -> bool:
    """Drop py4j's log records of exceptions that it also raises."""
    return record.module not in ("java_gateway", "clientserver")


NOISE = re.compile(
    rb"WARNING: (?:Using incubator modules|package \S+ not in|A terminally deprecated method|A restricted method"
    rb"|sun\.misc\.Unsafe|java\.lang\.System::load|Please consider reporting|Use --enable-native-access"
    rb"|Restricted methods will be)"
    rb"|Picked up (?:JAVA_TOOL|_JAVA)_OPTIONS"
    rb"|(?:Starting )?Streaming TransformWithStateInPandas Python worker"
    rb"|\s*$"
)
"""Lines that the JVM and PySpark's own workers print on every start, whatever the logging level."""


def pass_on(stream: IO[bytes]) -> None:
    """Forward the stderr of the JVM and its Python workers, without the noise."""
    with stream:
        for line in stream:
            if NOISE.match(line) is None:
                try:
                    sys.stderr.write(line.decode(errors="replace"))
                except (ValueError, OSError):
                    return  # stderr is closed, and the JVM is about to end


# ---- settings of the user ------------------------------------------------------------------------------------------


def spark_defaults(environment: Mapping[str, str]) -> dict[str, str]:
    """The user's spark-defaults.conf: lines of `key value` or `key=value`, as a properties file of Java's."""
    path = conf_directory(environment) / "spark-defaults.conf"
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    found: dict[str, str] = {}
    for line in map(str.strip, lines):
        matched = re.match(r"(spark\.[^\s=:]+)\s*[=:\s]\s*(.*)", line)
        if matched and line[0] not in "#!":
            found[matched[1]] = matched[2].strip()
    return found


def submitted() -> dict[str, str]:
    """Return the settings given to `spark-submit`, if it started this program."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return {}
    from pyspark.conf import SparkConf
    from pyspark.core.context import SparkContext

    SparkContext._ensure_initialized()
    return dict(SparkConf(_jvm=SparkContext._jvm).getAll())


def conf_directory(environment: Mapping[str, str]) -> Path:
    if "SPARK_CONF_DIR" in environment:
        return Path(environment["SPARK_CONF_DIR"])
    if "SPARK_HOME" in environment:
        return Path(environment["SPARK_HOME"]) / "conf"
    import pyspark

    return Path(pyspark.__file__).parent / "conf"


def own_log4j2(environment: Mapping[str, str]) -> Path | None:
    """The user's own configuration of Spark's logs."""
    found = [*conf_directory(environment).glob("log4j2.*")]
    return found[0] if found else None


def log4j2_uri() -> str:
    return (Path(__file__).parent / "log4j2.properties").as_uri()


# ---- masters -------------------------------------------------------------------------------------------------------


def is_local(master: str) -> bool:
    return LOCAL.fullmatch(master) is not None


def cores_of(master: str) -> int | None:
    """How many tasks a local master runs at once; None for a cluster."""
    found = LOCAL.fullmatch(master)
    if found is None:
        return None
    threads = found["threads"]
    return (len(os.sched_getaffinity(0)) or 1) if threads == "*" else int(threads or 1)


def with_retries(master: str) -> str:
    """A local master that tries a task as often as a cluster would; any other as it is."""
    found = LOCAL.fullmatch(master)
    if found is None or found["failures"]:
        return master
    return f"local[{found['threads'] or 1},{TASK_FAILURES_MAX}]"
