# SPDX-License-Identifier: Apache-2.0
"""Spark's own Kafka source, beside which ours is held: its jars by maven, and the pyspark that they are of by pip.

Both are kept under ``$CONSUMERD_KAFKA_CACHE`` (by default the user's cache folder), about 500 MB. The pyspark is no part of
the environment that runs this: a process finds it first on its path (:meth:`SparkWithKafka.environment`), and whatever else
it imports, consumerd too, where it always is.

Fetch them ahead of time with ``python -m tests.support.spark_kafka``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.kafka import JAVA_SOURCES, KafkaUnavailable, cache_folder, fetching

RELEASE: Final = "4.2.0"
"""Of pyspark; the jars' versions are in ``spark-kafka.pom.xml``."""

_POM: Final = JAVA_SOURCES / "spark-kafka.pom.xml"
_FETCH: Final = "python -m tests.support.spark_kafka"


@dataclass(frozen=True, slots=True)
class SparkWithKafka:
    """Where pyspark is, and the jars to name in ``spark.jars``."""

    packages: Path
    jars: tuple[Path, ...]

    def environment(self) -> dict[str, str]:
        """Return the variables of a process in which ``import pyspark`` is this one."""
        others = {name: value for name, value in os.environ.items() if name not in ("SPARK_HOME", "PYSPARK_PYTHON")}
        path = os.pathsep.join(filter(None, (str(self.packages), others.get("PYTHONPATH"))))
        return {**others, "PYTHONPATH": path}


def spark_with_kafka() -> SparkWithKafka:
    """Return both, having them fetched on first use. Raises KafkaUnavailable."""
    home = cache_folder() / f"spark-{RELEASE}"
    with fetching():
        jars = _have(home / "jars", _copy_jars)
        packages = _have(home / "packages", _install)
    return SparkWithKafka(packages=packages, jars=tuple(sorted(jars.glob("*.jar"))))


def _have(folder: Path, make: Callable[[Path], None]) -> Path:
    """Return a folder that is whole: another run that makes it at the same time does no harm."""
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    try:
        make(made)
        made.rename(folder)
    except OSError:
        if not folder.exists():  # else another run was first
            raise
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return folder


def _copy_jars(folder: Path) -> None:
    if shutil.which("mvn") is None or shutil.which("java") is None:
        raise KafkaUnavailable(
            f"the jars of Spark's Kafka source are not cached; with Java and maven installed, `{_FETCH}` provides them"
        )
    # each by itself: what their own descriptions ask for is in pyspark, or not needed
    _run("maven", ["mvn", "-B", "-q", "-f", str(_POM), "dependency:copy", f"-DoutputDirectory={folder}"])


def _install(folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run("pip", [*command, "--target", str(folder), f"pyspark=={RELEASE}"])


def _run(who: str, command: list[str]) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise KafkaUnavailable(
            f"{who} could not provide Spark's Kafka source:\n{done.stdout[-2000:]}{done.stderr[-500:]}"
        )


if __name__ == "__main__":
    sys.stdout.write(f"{spark_with_kafka()}\n")
