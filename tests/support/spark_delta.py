# SPDX-License-Identifier: Apache-2.0
"""Delta, for the pyspark that it is of: its jars by maven, the pyspark as ``tests.support.spark_kafka`` keeps it.

Fetch them ahead of time with ``python -m tests.support.spark_delta``.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.kafka import JAVA_SOURCES, KafkaUnavailable, cache_folder
from tests.support.spark_kafka import RELEASE, SparkWithKafka, spark_with_kafka

_POM: Final = JAVA_SOURCES / "spark-delta.pom.xml"
_FETCH: Final = "python -m tests.support.spark_delta"


@dataclass(frozen=True, slots=True)
class SparkWithDelta:
    """A pyspark in whose processes Delta works, with these settings of a session."""

    pyspark: SparkWithKafka
    jars: tuple[Path, ...]

    @property
    def settings(self) -> dict[str, str]:
        """What a session needs to be told."""
        return {
            "spark.jars": ",".join(map(str, self.jars)),
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        }


def spark_with_delta() -> SparkWithDelta:
    """Return both, having them fetched on first use. Raises KafkaUnavailable."""
    folder = cache_folder() / f"spark-{RELEASE}" / "delta-jars"
    pyspark = spark_with_kafka()
    if not folder.exists():
        _copy_jars(folder)
    return SparkWithDelta(pyspark=pyspark, jars=tuple(sorted(folder.glob("*.jar"))))


def _copy_jars(folder: Path) -> None:
    if shutil.which("mvn") is None or shutil.which("java") is None:
        raise KafkaUnavailable(
            f"the jars of Delta are not cached; with Java and maven installed, `{_FETCH}` provides them"
        )
    made = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    try:
        command = ["mvn", "-B", "-q", "-f", str(_POM), "dependency:copy", f"-DoutputDirectory={made}"]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise KafkaUnavailable(f"maven could not provide Delta:\n{done.stdout[-2000:]}{done.stderr[-500:]}")
        try:
            made.rename(folder)
        except OSError:
            if not folder.exists():  # else another run was first
                raise
    finally:
        shutil.rmtree(made, ignore_errors=True)


if __name__ == "__main__":
    sys.stdout.write(f"{spark_with_delta()}\n")
