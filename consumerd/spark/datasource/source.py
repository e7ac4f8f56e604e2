"""What Spark finds under the name ``consumerd``: readers and writers for batches and streams, made from options.

Instances travel between processes: they hold options and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource

from consumerd.spark.datasource.batch import BatchReader
from consumerd.spark.datasource.options import parse_read_options
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
    """The Data Source; ``consumerd.spark.register`` makes it known to a session."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return FORMAT

    def schema(self) -> str:
        """Return the columns as DDL; depends on ``includeHeaders`` alone."""
        return ddl(include_headers=self.options.get("includeHeaders", "false").strip().lower() == "true")

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark passes it by name
        """Return the batch reader. Raises ConfigError."""
        return BatchReader(parse_read_options(self.options, streaming=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802 - Spark's name
        """Return the stream reader. Raises ConfigError."""
        from consumerd.spark.datasource.stream import ConsumerdStreamReader

        return ConsumerdStreamReader(parse_read_options(self.options, streaming=True))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - passed by name
        """Return the batch writer. Raises ConfigError."""
        from consumerd.spark.datasource.writer import ConsumerdWriter

        return ConsumerdWriter(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: FBT001, N802
        """Return the stream writer. Raises ConfigError."""
        from consumerd.spark.datasource.stream_writer import ConsumerdStreamWriter

        return ConsumerdStreamWriter(self.options, schema, overwrite=overwrite)
