"""Results as a picture: a row of bars a case, one for each reader, with the least and the most of the rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from bench.cases import CASES, Reader
from bench.report import describe
from bench.results import Results
from bench.slopes import spread_of

_COLOURS: Final = {
    Reader.DAEMON: "#1b6ca8",
    Reader.PARQUET: "#5aa0d0",
    Reader.PURE: "#a9cce3",
    Reader.JAVA_NEW: "#d9822b",
    Reader.JAVA_OLD: "#f0b775",
    Reader.CONFLUENT: "#5f8f4e",
    Reader.AIOKAFKA: "#8fbf7f",
    Reader.KAFKA_PYTHON: "#c3dfb8",
    Reader.SOCKET: "#9a9a9a",
}


def draw(results: Results, path: Path) -> bool:
    """Write a PNG and return True; False when there are no rates to draw. Needs matplotlib."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    bars = [
        (case, reader, spread_of([rate / 1e6 for rate in rates]))
        for case in CASES
        if case.name in results.measured
        for reader in case.readers
        if (rates := results.measured[case.name].rates(reader))
    ]
    if not bars:
        return False
    cases = {case.name for case, _, _ in bars}
    figure, axes = plt.subplots(figsize=(11, 0.28 * len(bars) + 0.4 * len(cases) + 1.2), layout="constrained")
    at, last, ticks = 0.0, None, []
    for case, reader, spread in bars:
        if case is not last:
            at += 1.4
            axes.text(0, at - 1.0, describe(case), fontsize=9, fontweight="bold", va="center")
            last = case
        error = [[spread.median - spread.least], [spread.most - spread.median]]
        axes.barh(at, spread.median, 0.8, color=_COLOURS[reader], xerr=error, ecolor="#444444", capsize=2)
        axes.text(spread.most, at, f"  {spread.median:.2f}", fontsize=8, va="center")
        ticks.append((at, str(reader)))
        at += 1
    axes.set_yticks([where for where, _ in ticks], [name for _, name in ticks], fontsize=8)
    axes.set_ylim(at, 0)
    axes.set_xlabel("million records a second: median, least and most of the rounds")
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return True
