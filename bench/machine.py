# SPDX-License-Identifier: Apache-2.0
"""Description of what was measured: the machine, and the versions of all software."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Final

_PACKAGES: Final = ("aiokafka", "confluent-kafka", "kafka-python", "pyarrow", "uvloop", "aiohttp", "numpy")
_ROOT: Final = Path(__file__).resolve().parents[1]


def describe_machine() -> str:
    """Return the cores, CPU model, memory and kernel in one line."""
    model = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = re.search(r"^MemTotal:\s*(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    gib = int(memory.group(1)) / (1 << 20) if memory else float("nan")
    return (
        f"{os.cpu_count()} cores ({model.group(1) if model else platform.machine()}), {gib:.0f} GiB, "
        f"{platform.system()} {platform.release()}"
    )


def versions() -> dict[str, str]:
    """Return the versions of consumerd, all clients, Python and Java, by name.

    Packages that are not installed are left out.
    """
    from consumerd.wire.kernel import describe

    found = {"consumerd": f"{metadata.version('consumerd')}{_commit()}", "kernel": describe()}
    found["Python"] = platform.python_version()
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    if "confluent-kafka" in found:
        import confluent_kafka

        found["confluent-kafka"] += f" (librdkafka {confluent_kafka.libversion()[0]})"
    found["Java"] = _java()
    return found


def load() -> str:
    """Return the load averages of the last 1, 5 and 15 minutes."""
    return " ".join(f"{one:.2f}" for one in os.getloadavg())


def _commit() -> str:
    done = subprocess.run(
        ["git", "-C", str(_ROOT), "describe", "--always", "--dirty", "--abbrev=10"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return f" ({done.stdout.strip()})" if done.returncode == 0 else ""


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else "java"
    said = subprocess.run([program, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "([^"]+)"', said)
    return found.group(1) if found else "unknown"
