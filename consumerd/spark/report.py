# SPDX-License-Identifier: Apache-2.0
"""Formats the result of a job, as text or as one JSON object. Pure."""

from __future__ import annotations

import json
from typing import Final, Literal

from consumerd.spark.job import JobName, Summary
from consumerd.telemetry.text_tables import render_table

Status = Literal["ok", "found", "failed", "configuration"]

_MAX_PRINTED_FINDINGS: Final = 100
"""Limit of the findings in the text. The JSON object has all."""


def render_summary(job: JobName, summary: Summary, seconds: float, *, verdict: bool = True) -> str:
    """Return the summary of a job as text: tables, numbers, notes and findings.

    Args:
        seconds: duration of the run.
        verdict: end with a line that counts the findings.
    """
    parts = [f"{table.title}\n{render_table(table.heads, table.rows)}" for table in summary.tables]
    if summary.numbers:
        width = max(len(name) for name in summary.numbers)
        parts.append(
            "".join(f"{name.replace('_', ' '):{width}}  {_format(n)}\n" for name, n in summary.numbers.items())
        )
    if summary.notes:
        parts.append("".join(f"{note}\n" for note in summary.notes))
    if summary.findings:
        more = len(summary.findings) - _MAX_PRINTED_FINDINGS
        lines = [
            *summary.findings[:_MAX_PRINTED_FINDINGS],
            *([f"and {more:,} more; --json has all"] if more > 0 else []),
        ]
        parts.append("".join(f"! {line}\n" for line in lines))
    count = len(summary.findings)
    if verdict:
        end = "done, no findings" if count == 0 else "1 finding" if count == 1 else f"{count:,} findings"
        parts.append(f"{job}: {end} ({seconds:.1f} s)\n")
    return "\n".join(parts)


def encode_summary(job: JobName, summary: Summary, seconds: float) -> str:
    """Return the JSON object of a job that ran to its end, on one line."""
    status: Status = "found" if summary.findings else "ok"
    return _encode(
        {
            "job": job,
            "status": status,
            "seconds": round(seconds, 3),
            **summary.numbers,
            **summary.details,
            "findings": list(summary.findings),
            "notes": list(summary.notes),
        }
    )


def encode_failure(job: JobName, status: Status, message: str, seconds: float) -> str:
    """Return the JSON object of a job that failed, on one line."""
    return _encode({"job": job, "status": status, "seconds": round(seconds, 3), "error": message})


def _encode(value: dict[str, object]) -> str:
    return json.dumps(value, default=str) + "\n"


def _format(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return json.dumps(value, default=str) if isinstance(value, (dict, list)) else str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
