# SPDX-License-Identifier: Apache-2.0
"""The class that Spark finds under the format ``consumerd``: it makes readers and writers.

Instances are pickled and sent between processes, so they hold options and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource

from consumerd.errors import ConfigError
from consumerd.spark.datasource.options import ReadOptions, parse_read_options
from consumerd.spark.datasource.schema import ddl

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

FORMAT: Final = "consumerd"


class ConsumerdSource(DataSource):
    """Spark data source of the format ``consumerd``; ``consumerd.spark.register`` adds it to a session."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format: ``consumerd``."""
        return FORMAT

    def schema(self) -> str:
        """Return the columns of a reader as DDL.

        Raises ConfigError if the options are wrong both for batches and for streams. Spark does not tell which of the
        two it will read.
        """
        try:
            options = parse_read_options(self.options, streaming=False)
        except ConfigError as error:
            try:
                options = parse_read_options(self.options, streaming=True)
            except ConfigError:
                raise error from None
        return ddl(options.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the batch reader. Raises ConfigError."""
        from consumerd.spark.datasource.batch import BatchReader

        options = parse_read_options(self.options, streaming=False)
        _check_schema(schema, options)
        return BatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the stream reader. Raises ConfigError."""
        from consumerd.spark.datasource.stream import ConsumerdStreamReader

        options = parse_read_options(self.options, streaming=True)
        _check_schema(schema, options)
        return ConsumerdStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - passed by name
        """Return the batch writer. Raises ConfigError."""
        from consumerd.spark.datasource.writer import ConsumerdWriter

        return ConsumerdWriter(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: FBT001, N802
        """Return the stream writer. Raises ConfigError."""
        from consumerd.spark.datasource.writer import ConsumerdStreamWriter

        return ConsumerdStreamWriter(self.options, schema, overwrite=overwrite)


def _check_schema(schema: StructType, options: ReadOptions) -> None:
    """Raise ConfigError if the user called ``schema()`` with other columns than the source's."""
    expected = ddl(options.columns)
    given = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema.fields)
    if _compact(given) != _compact(expected):
        raise ConfigError(f"schema: the columns are fixed, leave schema() out; expected {expected}, got {given}")


def _compact(columns: str) -> str:
    return columns.replace(" ", "").lower()
