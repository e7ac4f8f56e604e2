# SPDX-License-Identifier: Apache-2.0
"""Make the operator's form of the alert rules: ``python deploy/prometheus/make_rule.py > FILE``.

The file is deploy/kubernetes/monitoring/prometheusrule.yaml. A test makes it again and compares.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

_RULES: Final = Path(__file__).with_name("alerts.yml")
_HEAD: Final = """\
# Made from deploy/prometheus/alerts.yml by deploy/prometheus/make_rule.py; edit that file instead.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: consumerd
  labels: {app.kubernetes.io/name: consumerd}
spec:
"""


def render() -> str:
    """Return the file: the rules as they stand, comments included, below ``spec``."""
    text = _RULES.read_text()
    groups = text[text.index("\ngroups:\n") + 1 :]
    return _HEAD + "".join(f"  {line}" if line.strip() else line for line in groups.splitlines(keepends=True))


if __name__ == "__main__":
    print(render(), end="")
