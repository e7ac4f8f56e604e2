# SPDX-License-Identifier: Apache-2.0
"""Figures stand beside what is aimed at, and a page's own text stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.cases import CASES, Case, Part, Reader
from bench.measuring import Measured, Reading
from bench.report import (
    BEGIN,
    END,
    compare,
    document,
    millions,
    put_between,
    rates_table,
    rows_of,
    table,
    targets_table,
)
from bench.results import Results, Row, Run, load_results, repeatable_command

CASE = next(case for case in CASES if case.name == "1.1.1-none-repeated")
RUN = Run(
    at="2026-01-01 00:00 UTC",
    command="python -m bench",
    machine="2 cores",
    versions={"consumerd": "0.1.0 (abc1234-dirty)"},
    rounds=3,
    records=16_000_000,
    load="0.10 0.10 0.10",
)


def readings(*rates: float) -> tuple[Reading, ...]:
    return tuple(
        Reading(records_per_s=rate, seconds=1.0, low=4_000_000, high=16_000_000, reader_cores=0.9, broker_cores=0.4)
        for rate in rates
    )


def measured(case: Case = CASE, **rates: tuple[float, ...]) -> Measured:
    """Rates by the names of readers."""
    return Measured(case=case.name, readings={Reader[name]: readings(*those) for name, those in rates.items()})


def test_a_ratio_is_of_medians_and_shows_its_rounds() -> None:
    """One slow round of anybody's decides nothing."""
    found = rows_of(CASE, measured(DAEMON=(9e6, 1e6, 9.2e6), JAVA_NEW=(6e6, 5e6, 6.1e6)))
    assert [(row.target, row.met) for row in found] == [("1.5 times the Java new consumer", True)]
    assert found[0].figure == "**1.50** (0.20 to 1.51): 9.00 M and 6.00 M"


def test_a_comparison_is_of_the_rounds_one_by_one() -> None:
    """Two contestants of a round have the same machine; those of different rounds may not."""
    row = compare("work", [4e6, 1e6, 9e6], [2e6, 1e6, 3e6], "a peer", 2.0)
    assert (row.target, row.met) == ("2 times a peer", True)
    assert row.figure == "**2.00** (1.00 to 3.00): 4.00 M and 2.00 M"
    assert not compare("work", [1.99e6], [1e6], "a peer", 2.0).met
    without = compare("work", [1e6], [2e6], "a peer", None)
    assert (without.target, without.met) == ("a peer", None)


def test_what_is_missed_is_said() -> None:
    """Just below is below."""
    assert [row.met for row in rows_of(CASE, measured(DAEMON=(8.99e6,), JAVA_NEW=(6e6,)))] == [False]
    (landing,) = (case for case in CASES if case.name == "1.1.1-parquet-repeated")
    found = rows_of(landing, measured(landing, PARQUET=(3.99e6,)))
    assert [row.met for row in found] == [False]
    assert found[0].figure == "**3.99 M** (3.99 M to 3.99 M)"


def test_nothing_is_said_of_who_did_not_take_part() -> None:
    """No peer, no ratio."""
    assert rows_of(CASE, measured(DAEMON=(9e6,))) == []
    assert rows_of(CASE, measured(JAVA_NEW=(9e6,), DAEMON=())) == []


def test_results_are_kept_and_replaced_by_name(tmp_path: Path) -> None:
    """A later run of one case replaces that case alone, and runs of which nothing is left go."""
    path = tmp_path / "performance" / "results.json"
    results = load_results(path)
    row = Row(work="decoding", target="10 M", figure="11 M", met=True)
    results.add(RUN, measured=[measured(DAEMON=(9e6,), JAVA_NEW=(6e6,))], rows={Part.KERNEL: [row]})
    results.save(path)
    again = load_results(path)
    assert again == results
    later = Run(**{**{name: getattr(RUN, name) for name in RUN.__dataclass_fields__}, "at": "2026-01-02"})
    again.add(later, measured=[measured(DAEMON=(1e6,), JAVA_NEW=(6e6,))])
    assert again.run_of == {CASE.name: 1, Part.KERNEL: 0}
    assert again.measured[CASE.name].rates(Reader.DAEMON) == [1e6]
    again.add(later, rows={Part.KERNEL: [row]})
    assert again.runs == [later]
    assert set(again.run_of.values()) == {0}


def test_the_document_says_where_figures_come_from() -> None:
    """Targets, verdicts, commands, everybody's rates, the run."""
    results = Results()
    row = Row(work="idling", target="5 %", figure="7 %", met=False)
    results.add(
        RUN, measured=[measured(DAEMON=(9e6,), JAVA_NEW=(6e6,), KAFKA_PYTHON=(15_000.0,))], rows={Part.IDLE: [row]}
    )
    text = document(results, "performance/rates.png")
    for part in (targets_table(results), rates_table(results)):
        assert part in text
    assert (
        "| idling | 5 % | 7 % | **no** | 2026-01-01, `abc1234` and changes | `python -m bench --cases idle` |" in text
    )
    assert "| 1.1.1, uncompressed, 100 bytes, repeated | kafka-python | 15.0 k |" in text
    assert (
        "2026-01-01 00:00 UTC, `python -m bench`: 3 rounds, slopes between 4.00 M and 16.00 M records. 2 cores" in text
    )
    assert "(performance/rates.png)" in text
    assert "![" not in document(results, None)


def test_failures_are_reported() -> None:
    """A reader that failed in a round is not passed over in silence."""
    results = Results()
    results.add(RUN, measured=[Measured(case=CASE.name, readings={}, failures=("aiokafka, round 2: ended",))])
    assert "- Failed: aiokafka, round 2: ended" in document(results, None)


def test_only_what_is_between_the_markers_is_replaced() -> None:
    """What people wrote around it stays."""
    page = f"# Title\n\nwords\n\n{BEGIN}\nold\n{END}\n\nmore\n"
    assert put_between(page, "new\n") == f"# Title\n\nwords\n\n{BEGIN}\n\nnew\n\n{END}\n\nmore\n"
    with pytest.raises(ValueError, match="the page has no"):
        put_between("# Title\n", "new\n")


def test_cells_cannot_break_a_table() -> None:
    """A bar in a cell is escaped."""
    assert table(("a", "b"), [("x|y", "z")]) == "| a | b |\n| --- | --- |\n| x\\|y | z |\n"


@pytest.mark.parametrize(
    ("rate", "text"), [(9.004e6, "9.00 M"), (123_456.0, "0.12 M"), (99_949.0, "99.9 k"), (500.0, "0.5 k")]
)
def test_rates_in_words(rate: float, text: str) -> None:
    """Millions, or thousands for the slow."""
    assert millions(rate) == text


@pytest.mark.parametrize("folder", [["--docs", "/made/elsewhere"], ["--docs=/made/elsewhere"], []])
def test_a_command_to_repeat_names_no_folder_of_the_machine(folder: list[str]) -> None:
    """Whoever measures again has other folders."""
    assert repeatable_command("bench", ["--rounds", "5", *folder, "--cases", "*-json"]) == (
        "python -m bench --rounds 5 --cases '*-json'"
    )
