# SPDX-License-Identifier: Apache-2.0
"""The Grafana dashboard, from the panels that ``ROWS`` lays out; prints it.

From the root: ``python deploy/grafana/make_dashboard.py > deploy/grafana/consumerd.json``.

The panels of the last row are repeated for every series that Prometheus has of the chosen daemons and jobs. So a new
series is shown without a change here. A test makes the dashboard again and compares.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

_COLUMNS: Final = 24
_HIDDEN: Final = 2
"""A variable of Grafana's that is not shown at the top."""
_DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
SELECTED: Final = 'job=~"$job", instance=~"$instance"'
"""What the variables at the top choose of the daemons."""
SELECTED_JOBS: Final = 'group=~"$group"'
"""What they choose of the pipeline's jobs, whose series come through a node_exporter or a Pushgateway."""
_EVENT_WINDOW: Final = "$__rate_interval"
"""Window of the panels about single events. It is longer than a step, so no event falls between two points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Title and queries of one panel. ``queries`` go from legend to expression.

    ``$S`` stands for the chosen instances, ``$J`` for the chosen groups of jobs.
    """

    title: str
    queries: Mapping[str, str]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    height: int = 8
    description: str = ""
    stacked: bool = False
    bad_above: float | None = None
    bad_below: float | None = None
    repeated_by: str = ""
    """Variable of the dashboard. There is one panel for each of its values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A heading and the panels below it; a ``folded`` row is closed until it is clicked."""

    title: str
    panels: Sequence[Panel]
    folded: bool = False


def _events(by: str, counter: str) -> str:
    """Return the events of a counter within the window, its first ones included.

    A counter with labels appears with its first event, and `increase` counts from the value that it appears with.
    Example: `consumerd_gap_offsets_total{reason="retention"}` appears as 700; `increase` says 0. So the value itself is
    shown where the series was not there before the window. As in alerts.yml, an hour is looked back, so that a scrape
    that failed for some minutes repeats no event.
    """
    selected = f"{counter}{{$S}}"
    first = f"({selected} unless max_over_time({selected}[1h] offset {_EVENT_WINDOW}))"
    return f"sum by ({by}) ({first} or increase({selected}[{_EVENT_WINDOW}]))"


def _stat(
    title: str,
    expression: str,
    *,
    unit: str = "short",
    description: str = "",
    bad_above: float | None = None,
    bad_below: float | None = None,
) -> Panel:
    """Return one number, which is red where it is bad."""
    return Panel(
        title=title,
        queries={"": expression},
        unit=unit,
        kind="stat",
        width=3,
        height=4,
        description=description,
        bad_above=bad_above,
        bad_below=bad_below,
    )


def _each(variable: str, expression: str) -> Panel:
    """Return a panel that is repeated for each series that a variable of ``SERIES_OF`` has."""
    return Panel(title=f"${variable}", queries={"": expression}, width=6, height=6, repeated_by=variable)


ROWS: Final = (
    Row(
        title="The group",
        panels=(
            _stat("Ready", "sum(consumerd_ready{$S}) / count(consumerd_ready{$S})", unit="percentunit", bad_below=1),
            _stat("Members", "max(consumerd_group_members{$S})"),
            _stat("Partitions owned", "sum(consumerd_owned_partitions{$S})"),
            _stat("Not owned", "sum(consumerd_unowned_partitions{$S})", bad_above=0),
            _stat("Stopped", "sum(consumerd_stopped_partitions{$S})", bad_above=0),
            _stat("Failing", "sum(consumerd_failing_partitions{$S})", bad_above=0),
            _stat(
                "Lag",
                "sum(consumerd_lag_records{$S} >= 0)",
                description="Records; partitions whose lag is unknown are left out.",
            ),
            _stat(
                "Lag in time",
                "max(consumerd_lag_seconds{$S} >= 0)",
                unit="s",
                description="Age of the oldest record that is not acknowledged; unknown ones are left out.",
            ),
            Panel(
                title="Records delivered",
                queries={"{{topic}}": "sum by (topic) (rate(consumerd_records_delivered_total{$S}[$__rate_interval]))"},
                unit="cps",
                stacked=True,
                width=12,
            ),
            Panel(title="Lag", queries={"{{topic}}": "sum by (topic) (consumerd_lag_records{$S} >= 0)"}, width=12),
            Panel(
                title="Lag, the ten largest partitions",
                queries={
                    "{{topic}}/{{partition}}": "topk(10, sum by (topic, partition) (consumerd_lag_records{$S} >= 0))"
                },
                width=12,
            ),
            Panel(
                title="Lag in time, the ten longest",
                queries={
                    "{{topic}}/{{partition}}": "topk(10, max by (topic, partition) (consumerd_lag_seconds{$S} >= 0))"
                },
                unit="s",
                width=12,
            ),
            Panel(
                title="Append to landed, by sink",
                queries={
                    "{{sink}} median": "histogram_quantile(0.5, sum by (sink, le) (rate(consumerd_landing_delay_seconds_bucket{$S}[$__rate_interval])))",
                    "{{sink}} 99th percentile": "histogram_quantile(0.99, sum by (sink, le) (rate(consumerd_landing_delay_seconds_bucket{$S}[$__rate_interval])))",
                },
                unit="s",
                width=12,
            ),
            Panel(
                title="Time since the position moved, the ten longest with lag",
                queries={
                    "{{topic}}/{{partition}}": "topk(10, (time() - consumerd_last_progress_timestamp_seconds{$S})"
                    " and (consumerd_lag_records{$S} > 0))"
                },
                unit="s",
                width=12,
            ),
            Panel(
                title="Partitions by process",
                queries={"{{instance}}": "sum by (instance) (consumerd_owned_partitions{$S})"},
                stacked=True,
                width=12,
            ),
            Panel(
                title="Time until certificates end",
                queries={"{{file}}": "min by (file) (consumerd_tls_certificate_expiry_timestamp_seconds{$S}) - time()"},
                unit="s",
                description="Of cluster.tls, as each process has read it at its start.",
                width=12,
            ),
            Panel(
                title="Time until Kerberos tickets end",
                queries={
                    "{{identity}}": "min by (identity) (consumerd_kerberos_ticket_expiry_timestamp_seconds{$S}) - time()",
                    "{{identity}}, a fifth of its life": "0.2 * min by (identity) "
                    "(consumerd_kerberos_ticket_lifetime_seconds{$S})",
                },
                unit="s",
                description="With a keytab they are renewed at half of their life. Below a fifth an alert fires.",
                width=12,
            ),
        ),
    ),
    Row(
        title="Mirror",
        folded=True,
        panels=(
            _stat(
                "Safe to cut over",
                "min(consumerd_mirror_safe_to_cut_over{$S})",
                description="1 if every member says that all its partitions are in the target. Stop producers first.",
            ),
            Panel(
                title="Source offsets that are not in the target",
                queries={
                    "{{topic}}": "sum by (topic) (consumerd_high_watermark_offset{$S} - consumerd_acknowledged_offset{$S}"
                    " and consumerd_mirror_source_offset{$S})"
                },
                width=10,
            ),
            Panel(
                title="Transactions",
                queries={
                    "{{sink}} {{result}}": "sum by (sink, result) (rate(consumerd_mirror_transaction_seconds_count{$S}[$__rate_interval]))"
                },
                unit="cps",
                description="The records of an aborted one are sent again.",
                width=10,
            ),
            Panel(
                title="Time of transactions",
                queries={
                    "{{sink}} median": "histogram_quantile(0.5, sum by (sink, le) (rate(consumerd_mirror_transaction_seconds_bucket{$S}[$__rate_interval])))",
                    "{{sink}} 99th percentile": "histogram_quantile(0.99, sum by (sink, le) (rate(consumerd_mirror_transaction_seconds_bucket{$S}[$__rate_interval])))",
                },
                unit="s",
                width=24,
            ),
        ),
    ),
    Row(
        title="Data that was passed over",
        panels=(
            Panel(
                title="Offsets in gaps",
                queries={"{{topic}} {{reason}}": _events("topic, reason", "consumerd_gap_offsets_total")},
                description="compaction, control and aborted hold no record of the user's.",
            ),
            Panel(
                title="Units skipped and quarantined",
                queries={
                    "{{topic}} {{cause}} {{action}}": _events("topic, cause, action", "consumerd_units_passed_total")
                },
            ),
            Panel(
                title="Positions reset",
                queries={"{{topic}} {{reason}}": _events("topic, reason", "consumerd_position_resets_total")},
            ),
        ),
    ),
    Row(
        title="Partitions that stand still",
        panels=(
            Panel(
                title="Stopped for, by partition",
                queries={
                    "{{topic}}/{{partition}}": "max by (topic, partition) (consumerd_partition_stopped_seconds{$S}) > 0"
                },
                unit="s",
                description="A policy stopped it until somebody acts.",
            ),
            Panel(
                title="Failing for, by partition",
                queries={
                    "{{topic}}/{{partition}}": "max by (topic, partition) (consumerd_partition_failing_seconds{$S}) > 0"
                },
                unit="s",
                description="Something fails that is tried again.",
            ),
            Panel(
                title="Warnings and errors without a series of their own",
                queries={"{{kind}}": _events("kind", "consumerd_troubles_total")},
                description="By the name of their log event.",
            ),
        ),
    ),
    Row(
        title="Sinks and memory",
        panels=(
            Panel(
                title="Bytes published",
                queries={"{{sink}}": "sum by (sink) (rate(consumerd_published_bytes_total{$S}[$__rate_interval]))"},
                unit="Bps",
            ),
            Panel(
                title="Time since the last file",
                queries={"{{sink}} {{instance}}": "time() - consumerd_last_file_timestamp_seconds{$S}"},
                unit="s",
            ),
            Panel(
                title="Time since the last commit, the ten longest with records to commit",
                queries={
                    "{{topic}}/{{partition}}": "topk(10, (time() - consumerd_last_commit_timestamp_seconds{$S})"
                    " and (consumerd_acknowledged_offset{$S} > consumerd_committed_offset{$S}))"
                },
                unit="s",
            ),
            Panel(
                title="Sink errors",
                queries={"{{sink}} retriable={{retriable}}": _events("sink, retriable", "consumerd_sink_errors_total")},
            ),
            Panel(
                title="Memory held, by kind",
                queries={
                    "{{kind}}": "sum by (kind) (consumerd_buffered_bytes{$S})",
                    "budget": "sum(consumerd_memory_budget_bytes{$S})",
                },
                unit="bytes",
            ),
            Panel(
                title="Memory held, by sink",
                queries={
                    "{{sink}}": "sum by (sink) (consumerd_sink_buffered_bytes{$S})",
                    "part of {{sink}}": "sum by (sink) (consumerd_sink_memory_budget_bytes{$S})",
                },
                unit="bytes",
            ),
            Panel(
                title="Resident memory, by process",
                queries={"{{instance}}": "process_resident_memory_bytes{$S}"},
                unit="bytes",
            ),
            Panel(
                title="CPU, by process",
                queries={"{{instance}}": "rate(process_cpu_seconds_total{$S}[$__rate_interval])"},
                unit="percentunit",
                description="1 is one core.",
            ),
            Panel(
                title="File descriptors, part of the limit",
                queries={"{{instance}}": "process_open_fds{$S} / process_max_fds{$S}"},
                unit="percentunit",
            ),
        ),
    ),
    Row(
        title="Rebalances and ZooKeeper",
        panels=(
            Panel(
                title="Rebalances, by cause",
                queries={"{{cause}}": _events("cause", "consumerd_rebalances_total")},
            ),
            Panel(
                title="Rebalances, 95th percentile by phase",
                queries={
                    "{{phase}}": "histogram_quantile(0.95, sum by (phase, le) (rate(consumerd_rebalance_seconds_bucket{$S}[$__rate_interval])))"
                },
                unit="s",
            ),
            Panel(
                title="Session phases",
                queries={"{{phase}}": _events("phase", "consumerd_session_phase_total")},
                description="paused: no answer for half the session's timeout; suspended: for two thirds.",
            ),
        ),
    ),
    Row(
        title="Brokers",
        panels=(
            Panel(
                title="Requests, 95th percentile",
                queries={
                    "{{api}}": "histogram_quantile(0.95, sum by (api, le) (rate(consumerd_broker_request_seconds_bucket{$S}[$__rate_interval])))"
                },
                unit="s",
                description="A fetch waits up to fetch.max_wait_ms where there is nothing new.",
            ),
            Panel(
                title="Requests without an answer",
                queries={"{{api}} {{error}}": _events("api, error", "consumerd_broker_request_failures_total")},
            ),
            Panel(
                title="Partition errors of fetches",
                queries={"{{topic}} {{error}}": _events("topic, error", "consumerd_fetch_errors_total")},
            ),
        ),
    ),
    Row(
        title="Jobs of the pipeline",
        panels=(
            Panel(
                title="Time since the last success",
                queries={
                    "{{group}} {{job_name}}": "time() - max by (group, job_name) (consumerd_job_last_success_timestamp_seconds{$J})"
                },
                unit="s",
            ),
            Panel(
                title="Exit codes",
                queries={"{{group}} {{job_name}}": "max by (group, job_name) (consumerd_job_exit_code{$J})"},
                description="0 done, 1 failed or found something, 2 settings.",
            ),
            Panel(
                title="Duration",
                queries={"{{group}} {{job_name}}": "max by (group, job_name) (consumerd_job_duration_seconds{$J})"},
                unit="s",
            ),
            Panel(
                title="Behind: rows of silver",
                queries={"{{table}}": "max by (table) (consumerd_table_rows_behind{$J})"},
            ),
            Panel(
                title="Behind: landed files that bronze lacks",
                queries={"{{group}}": "max by (group) (consumerd_table_files_behind{$J})"},
            ),
            Panel(
                title="Size of tables",
                queries={"{{table}}": "max by (table) (consumerd_table_size_bytes{$J})"},
                unit="bytes",
                stacked=True,
            ),
            Panel(
                title="Rows of tables",
                queries={"{{table}}": "max by (table) (consumerd_table_rows{$J})"},
            ),
        ),
    ),
    Row(
        title="Every series",
        panels=(
            _each("gauge", 'sum without (partition, instance) ({__name__="$gauge", $S})'),
            _each("counter", 'sum without (partition, instance) (rate({__name__="$counter", $S}[$__rate_interval]))'),
            _each("job_series", 'max without (instance) ({__name__="$job_series", $J})'),
        ),
        folded=True,
    ),
)

SERIES_OF: Final = {
    "gauge": '{__name__=~"(consumerd|process)_.+", __name__!~".+_(total|bucket|sum|count)", $S}',
    "counter": '{__name__=~"(consumerd|process)_.+_(total|sum|count)", $S}',
    "job_series": '{__name__=~"consumerd_(job|table)_.+", $J}',
}
"""What selects the values of each variable by which panels are repeated: names of series."""


def _steps(panel: Panel) -> list[dict[str, object]]:
    if panel.bad_above is not None:
        return [{"color": "green", "value": None}, {"color": "red", "value": panel.bad_above + 1e-9}]
    if panel.bad_below is not None:
        return [{"color": "red", "value": None}, {"color": "green", "value": panel.bad_below}]
    return [{"color": "text" if panel.kind == "stat" else "green", "value": None}]


def _panel(number: int, panel: Panel, x: int, y: int) -> dict[str, object]:
    custom = {
        "lineWidth": 1,
        "fillOpacity": 25 if panel.stacked else 8,
        "showPoints": "never",
        "stacking": {"mode": "normal" if panel.stacked else "none"},
    }
    repeated = {"repeat": panel.repeated_by, "repeatDirection": "h", "maxPerRow": _COLUMNS // panel.width}
    return {
        "id": number,
        **(repeated if panel.repeated_by else {}),
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": _DATASOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit,
                "thresholds": {"mode": "absolute", "steps": _steps(panel)},
                **({"custom": custom, "min": 0} if panel.kind == "timeseries" else {}),
            },
            "overrides": [],
        },
        "options": {"colorMode": "value", "reduceOptions": {"calcs": ["lastNotNull"]}}
        if panel.kind == "stat"
        else {"tooltip": {"mode": "multi", "sort": "desc"}, "legend": {"displayMode": "list", "placement": "bottom"}},
        "targets": [
            {
                "refId": chr(ord("A") + at),
                "datasource": _DATASOURCE,
                "expr": _select(query),
                "legendFormat": legend or "__auto",
            }
            for at, (legend, query) in enumerate(panel.queries.items())
        ],
    }


def _select(query: str) -> str:
    return query.replace("$S", SELECTED).replace("$J", SELECTED_JOBS)


def _place(row: Row, first: int, top: int) -> tuple[list[dict[str, object]], int]:
    """Return the row's panels, left to right and line by line, and how high they are together."""
    placed: list[dict[str, object]] = []
    x = y = tallest = 0
    for number, panel in enumerate(row.panels, first):
        if x + panel.width > _COLUMNS:
            x, y, tallest = 0, y + tallest, 0
        placed.append(_panel(number, panel, x, top + y))
        x, tallest = x + panel.width, max(tallest, panel.height)
    return placed, y + tallest


def _variable(name: str, query: str) -> dict[str, object]:
    return {
        "name": name,
        "type": "query",
        "datasource": _DATASOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }


def dashboard() -> dict[str, object]:
    """Return the dashboard as Grafana takes it."""
    panels: list[dict[str, object]] = []
    number, top = 1, 0
    for row in ROWS:
        header = {"id": number, "type": "row", "title": row.title, "collapsed": row.folded}
        placed, height = _place(row, number + 1, top + 1)
        panels.append(
            {**header, "gridPos": {"x": 0, "y": top, "w": _COLUMNS, "h": 1}, "panels": placed if row.folded else []}
        )
        panels += [] if row.folded else placed
        number += 1 + len(placed)
        top += 1 + (0 if row.folded else height)
    return {
        "uid": "consumerd",
        "title": "consumerd",
        "tags": ["consumerd", "kafka"],
        "schemaVersion": 39,
        "editable": True,
        "time": {"from": "now-3h", "to": "now"},
        "refresh": "30s",
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus"},
                _variable("job", "label_values(consumerd_info, job)"),
                _variable("instance", 'label_values(consumerd_info{job=~"$job"}, instance)'),
                _variable("group", "label_values(consumerd_job_last_run_timestamp_seconds, group)"),
                *(
                    {**_variable(name, f"label_values({_select(series)}, __name__)"), "hide": _HIDDEN}
                    for name, series in SERIES_OF.items()
                ),
            ]
        },
        "panels": panels,
    }


def render() -> str:
    """Return the dashboard's file."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    print(render(), end="")
