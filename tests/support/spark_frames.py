# SPDX-License-Identifier: Apache-2.0
"""Reads of the format ``consumerd`` in the test's own Spark session, and what came of them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.support.kafka import Sent
from tests.support.landing_check import Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_QUERY_S: Final = 300


def make_records(topic: str, seed: int, count: int, partitions: int, *, headers: bool) -> Iterator[Sent]:
    """Yield records of all kinds, over the partitions in turn: null, empty, binary and large keys and values."""
    source = random.Random(seed)
    data = (None, b"", b"x", b"\xff\x00", source.randbytes(300), source.randbytes(20_000))
    some = ((), (("name", b"value"), ("null", None), ("name", b""))) if headers else ((),)
    for number in range(count):
        yield Sent(topic, number % partitions, source.choice(data), source.choice(data), source.choice(some))


def read_batch(spark: SparkSession, **options: object) -> DataFrame:
    """Return a batch with headers; ``options`` with ``__`` for ``.``."""
    return _load(spark.read, options)


def read_stream(spark: SparkSession, **options: object) -> DataFrame:
    """Return a stream with headers; ``options`` with ``__`` for ``.``."""
    return _load(spark.readStream, options)


def _load(reader: Any, options: dict[str, object]) -> DataFrame:
    reader = reader.format("consumerd").option("includeHeaders", "true")
    for name, value in options.items():
        reader = reader.option(name.replace("__", "."), str(value))
    frame: DataFrame = reader.load()
    return frame


def as_sent(frame: DataFrame) -> dict[Place, Sent]:
    """Return what was read as it was sent; each place once."""
    rows = frame.collect()
    found = {
        (row.topic, row.partition, row.offset): Sent(
            row.topic,
            row.partition,
            _bytes(row.key),
            _bytes(row.value),
            tuple((one.key, _bytes(one.value)) for one in row.headers or ()),
        )
        for row in rows
    }
    assert len(rows) == len(found)
    return found


def _bytes(data: Any) -> bytes | None:
    return None if data is None else bytes(data)


def run_available(frame: DataFrame, folder: Path) -> None:
    """Append what there is to Parquet files below ``folder``, from the checkpoint there on."""
    query = (
        frame.writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "sink"))
    )
    try:
        assert query.awaitTermination(_QUERY_S)
    finally:
        query.stop()


def read_sink(spark: SparkSession, folder: Path) -> DataFrame:
    """Return what :func:`run_available` has appended."""
    return spark.read.parquet(str(folder / "sink"))


def read_triggers(folder: Path) -> list[dict[str, dict[str, int]]]:
    """Return the offsets of each trigger, as the checkpoint has them."""
    logs = sorted((folder / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    return [json.loads(path.read_text().splitlines()[-1]) for path in logs]
