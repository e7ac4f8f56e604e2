# SPDX-License-Identifier: Apache-2.0
"""Reads tables as somebody does who knows nothing of consumerd: by delta-rs, Polars and DuckDB. The extra ``readers`` has them."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

Rows = list[str]
"""Rows of a table in any order, as texts that can be compared: column by column, by name."""


def open_by_delta_rs(path: Path, version: int | None = None) -> Any:
    """Open with delta-rs: its ``DeltaTable``."""
    return _need("deltalake").DeltaTable(path, version=version)


def by_delta_rs(path: Path, version: int | None = None) -> pa.Table:
    """Read with delta-rs, into Arrow by way of its Python package."""
    found: pa.Table = open_by_delta_rs(path, version).to_pyarrow_table()
    return found


def by_polars(path: Path, version: int | None = None) -> pa.Table:
    """Read with Polars' own Parquet reader; the log is read by delta-rs."""
    polars = _need("polars")
    found: pa.Table = polars.read_delta(str(path), version=version).to_arrow()
    return found


def by_duckdb(path: Path, version: int | None = None) -> pa.Table:
    """Read with DuckDB, whose extension has Delta's kernel."""
    duckdb, extensions = _need("duckdb"), _need("duckdb_extensions")
    extensions.import_extension("delta")
    at = "" if version is None else f", version={version}"
    with duckdb.connect() as connection:
        connection.execute("LOAD delta")
        place = str(path).replace("'", "''")
        found: pa.Table = connection.execute(f"SELECT * FROM delta_scan('{place}'{at})").to_arrow_table()
        return found


READERS: Final[Mapping[str, Callable[..., pa.Table]]] = {
    "delta-rs": by_delta_rs,
    "Polars": by_polars,
    "DuckDB": by_duckdb,
}


def rows_of(table: pa.Table) -> Rows:
    """Return a table's rows for a comparison."""
    return sorted(repr(sorted((name, _comparable(value)) for name, value in row.items())) for row in table.to_pylist())


def _comparable(value: object) -> object:
    """Return a value without the name of its zone: each reader has its own for UTC (DuckDB the machine's)."""
    if isinstance(value, dict):
        return {name: _comparable(held) for name, held in value.items()}
    if isinstance(value, list | tuple):
        return [_comparable(held) for held in value]
    return value.astimezone(UTC) if isinstance(value, datetime) and value.tzinfo is not None else value


def _need(module: str) -> Any:
    """Import a reader's package. Without it the test skips; with ``CONSUMERD_REQUIRE_TOOLS=1``, as in CI, it fails."""
    try:
        return importlib.import_module(module)
    except ImportError:
        reason = f"{module} is not installed: pip install -e '.[readers]'"
        if os.environ.get("CONSUMERD_REQUIRE_TOOLS") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
