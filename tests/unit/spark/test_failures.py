# SPDX-License-Identifier: Apache-2.0
"""What is told of an error that has come through Spark."""

from __future__ import annotations

import pytest

from consumerd.spark.failures import find_cause

WORKER = """Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, most recent failure: Lost task 0.0 in stage 1.0
(TID 1) (127.0.0.1 executor driver): org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/opt/spark/python/pyspark/worker.py", line 1, in main
    process()
consumerd.errors.OffsetOutOfRange: orders/3: offset 17 is gone, the log starts at 100

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:581)
Caused by: java.lang.RuntimeException: nothing of interest
"""

SAVING = """An error occurred while calling o1.save.
org.apache.spark.SparkException: Job aborted.
Caused by: java.io.IOException: No space left on device
\tat x.y.Z
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (WORKER, ("orders/3: offset 17 is gone, the log starts at 100", False)),
        (
            "[PYTHON_DATA_SOURCE_ERROR] Failed\nconsumerd.errors.ConfigError: option subscribe: missing\n",
            ("option subscribe: missing", True),
        ),
        ("[X] failed\nValueError: no such thing\n", ("ValueError: no such thing", False)),
        (
            SAVING,
            ("IOException: No space left on device", False),
        ),
        (
            "[PATH_NOT_FOUND] Path does not exist: file:/x.\nmore",
            ("[PATH_NOT_FOUND] Path does not exist: file:/x.", False),
        ),
        ("", ("Spark gave no reason", False)),
    ],
)
def test_the_cause_is_found_among_the_frames(text: str, expected: tuple[str, bool]) -> None:
    """An error names topic, partition and offset; fifty lines of Scala around it hide that."""
    assert expected == find_cause(text)
