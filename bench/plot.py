# SPDX-License-Identifier: Apache-2.0
"""Bar chart of the results: one group per case, one bar per reader.

A bar is the median of the rounds; its error bar goes from the lowest to the highest rate.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from bench.cases import CASES, Case, Reader
from bench.report import describe, millions
from bench.results import Results
from bench.slopes import Spread, spread_of

Bar = tuple[Case, Reader, Spread]

_COLOURS: Final = {
    Reader.DAEMON: "#1b6ca8",
    Reader.PARQUET: "#5aa0d0",
    Reader.PARQUET_SNAPPY: "#9cc7e6",
    Reader.PURE: "#a9cce3",
    Reader.CONNECTOR_BATCHES: "#7a5ba8",
    Reader.CONNECTOR_RECORDS: "#b39bd6",
    Reader.SIMPLE: "#d5c7ea",
    Reader.JAVA_NEW: "#d9822b",
    Reader.JAVA_OLD: "#f0b775",
    Reader.CONFLUENT: "#5f8f4e",
    Reader.AIOKAFKA: "#8fbf7f",
    Reader.KAFKA_PYTHON: "#c3dfb8",
    Reader.SOCKET: "#9a9a9a",
}


_BETWEEN: Final = 1.4
"""Space for the title of a case, in bars."""


def draw(results: Results, path: Path) -> bool:
    """Write the chart as a PNG file.

    Returns False, and writes nothing, if there are no rates to draw. Needs matplotlib.
    """
    bars = [
        (case, reader, spread_of(rates))
        for case in CASES
        if case.name in results.measured
        for reader in case.readers
        if (rates := results.measured[case.name].rates(reader))
    ]
    if not bars:
        return False
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    columns = _halves(bars)
    tallest = max(map(_height, columns))
    figure, places = plt.subplots(
        1,
        len(columns),
        figsize=(8 * len(columns), 0.26 * tallest + 0.8),
        layout="constrained",
        sharex=True,
        squeeze=False,
    )
    for axes, column in zip(places[0], columns, strict=True):
        _draw_column(axes, column)
        axes.set_ylim(tallest, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)
    return True


def _halves(bars: list[Bar]) -> list[list[Bar]]:
    """Split the bars between two cases, into columns of similar height."""
    cuts = [at for at in range(1, len(bars)) if bars[at][0] is not bars[at - 1][0]]
    if not cuts:
        return [bars]
    cut = min(cuts, key=lambda at: max(_height(bars[:at]), _height(bars[at:])))
    return [bars[:cut], bars[cut:]]


def _height(bars: list[Bar]) -> float:
    return len(bars) + _BETWEEN * len({case.name for case, _, _ in bars})


def _draw_column(axes: Any, bars: list[Bar]) -> None:
    at, last, names = 0.0, None, {}
    for case, reader, spread in bars:
        if case is not last:
            at += _BETWEEN
            axes.text(0, at - 1.0, describe(case), fontsize=9, fontweight="bold", va="center")
            last = case
        error = [[(spread.median - spread.least) / 1e6], [(spread.most - spread.median) / 1e6]]
        axes.barh(at, spread.median / 1e6, 0.8, color=_COLOURS[reader], xerr=error, ecolor="#444444", capsize=2)
        axes.text(spread.most / 1e6, at, f"  {millions(spread.median)}", fontsize=8, va="center")
        names[at] = str(reader)
        at += 1
    axes.set_yticks(list(names), list(names.values()), fontsize=8)
    axes.set_xlabel("million records a second: median, least and most of the rounds")
    axes.spines[["top", "right"]].set_visible(False)
