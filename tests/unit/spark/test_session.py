# SPDX-License-Identifier: Apache-2.0
"""What is said of a JVM that is no more."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from consumerd.errors import ConfigError
from consumerd.java import MINIMUM_JAVA
from consumerd.spark.session import OLDEST_SPARK, check_spark_version, describe_exit_code


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (52, "has run out of memory: give it more than 2g with pipeline.spark.driver_memory"),
        (-signal.SIGKILL, "was killed (SIGKILL), as a system does that is short of memory"),
        (128 + signal.SIGKILL, "was killed (SIGKILL)"),
        (1, "has ended by itself (exit code 1)"),
    ],
)
def test_the_end_of_a_jvm_names_its_reason_and_the_setting(code: int, told: str) -> None:
    """ "Connection refused" is all that its client knows."""
    described = describe_exit_code(code, "2g")
    assert told in described
    assert "pipeline.spark.driver_memory" in described


@pytest.mark.parametrize("version", ["4.2.0", "4.10.1", "5.0.0-SNAPSHOT"])
def test_a_spark_that_is_new_enough_is_taken(version: str) -> None:
    """Numbers are compared as numbers."""
    check_spark_version(version)


@pytest.mark.parametrize("version", ["3.5.6", "4.1.2", "4.0.0.dev1"])
def test_an_older_spark_is_refused_before_anything_else_fails(version: str) -> None:
    """Else it is an attribute that is missing, somewhere."""
    with pytest.raises(ConfigError, match=re.escape(f"needs Spark 4.2 or newer, this is {version}")):
        check_spark_version(version)


def test_the_extra_and_the_documents_say_the_same() -> None:
    """Whoever installs it gets what is needed, and whoever reads of it is told the same."""
    oldest = ".".join(map(str, OLDEST_SPARK))
    top = Path(__file__).parents[3]

    assert f'"pyspark>={oldest},<5"' in (top / "pyproject.toml").read_text()
    assert f"needs Spark {oldest} or newer" in (top / "docs" / "spark.md").read_text()
    assert f"needs Spark {oldest} or newer" in (top / "docs" / "spark-source.md").read_text()


def test_the_documents_name_the_python_and_java_that_are_taken() -> None:
    """Versions of Python are pip's to refuse, those of Java ``get_java``'s."""
    top = Path(__file__).parents[3]
    supported = (top / ".ci" / "pythons").read_text().split()
    first, last = (int(version.removeprefix("3.")) for version in (supported[0], supported[-1]))

    said = (top / "docs" / "spark.md").read_text()
    pythons = {(int(low), int(high)) for low, high in re.findall(r"Python 3\.(\d+) to 3\.(\d+)", said)}
    javas = {int(java) for java in re.findall(r"Java (\d+)", said)}
    assert pythons == {(first, last)}
    assert javas == {MINIMUM_JAVA}
