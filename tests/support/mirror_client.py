# SPDX-License-Identifier: Apache-2.0
"""MirrorMaker 2, and its client library, by which Java programs look up translated positions.

Fetch the library's jars ahead of time with ``python -m tests.support.mirror_client 4.3.1``.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tests.support.kafka import JAVA_SOURCES, KafkaUnavailable, cache_folder, class_command, fetching

RELEASES: Final = ("3.9.1", "4.3.1")
"""Releases whose client library is tested."""
MAKER: Final = "mirror-maker"
"""Name of the pom of MirrorMaker 2 itself, which the benchmarks run."""
_MAIN: Final = "org.apache.kafka.connect.mirror.CheckpointOracle"
_SOURCE: Final = JAVA_SOURCES / "mirror" / Path(*_MAIN.split(".")).with_suffix(".java")


def jars(release: str, pom: str = "mirror-client") -> Path:
    """Return the folder with the library's jars, copying them by maven on first use. Raises KafkaUnavailable.

    Args:
        pom: Names what is copied, the library or ``MAKER``.
    """
    folder = cache_folder() / f"{pom}-{release}"
    if not (folder / ".complete").exists():
        with fetching():
            _copy_jars(release, pom, folder)
    return folder


def maker_command(release: str, *args: str, heap: str) -> list[str]:
    """Return the command that runs MirrorMaker 2 of a release, without a Connect cluster. Raises KafkaUnavailable."""
    return class_command(jars(release, MAKER), "org.apache.kafka.connect.mirror.MirrorMaker", *args, heap=heap)


def _copy_jars(release: str, pom: str, folder: Path) -> None:
    if (folder / ".complete").exists():  # another run was first
        return
    if shutil.which("mvn") is None or shutil.which("java") is None:
        raise KafkaUnavailable(
            f"the jars of {pom} {release} are not cached; with Java and maven installed, "
            f"`python -m tests.support.mirror_client {release}` provides them"
        )
    shutil.rmtree(folder, ignore_errors=True)
    command = ["mvn", "-B", "-q", "-f", str(JAVA_SOURCES / f"{pom}.pom.xml"), "dependency:copy-dependencies"]
    command += [f"-Dkafka.version={release}", f"-DoutputDirectory={folder}"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise KafkaUnavailable(f"maven could not copy the jars of {pom}:\n{done.stdout[-2000:]}{done.stderr[-500:]}")
    (folder / ".complete").touch()


def _compile(release: str) -> Path:
    folder = jars(release)
    classes = folder / f"classes-{hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:12]}"
    if not classes.exists():
        made = Path(tempfile.mkdtemp(dir=folder))
        command = ["javac", "-nowarn", "-cp", f"{folder}/*", "-d", str(made), str(_SOURCE)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            shutil.rmtree(made)
            raise KafkaUnavailable(f"javac could not compile against {release}:\n{done.stderr[-2000:]}")
        try:
            made.rename(classes)
        except OSError:  # another run was first
            shutil.rmtree(made)
    return classes


def _run(release: str, *args: str, stdin: str = "") -> list[list[str]]:
    classes = _compile(release)
    command = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true"]
    command += ["-Dfile.encoding=UTF-8", "-Dstdout.encoding=UTF-8", "-cp", f"{classes}:{jars(release)}/*", _MAIN, *args]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, encoding="utf-8", check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{_MAIN} of {release} failed: {done.stderr[-3000:]}")
    return [line.split("\t") for line in done.stdout.splitlines()]


def decode_checkpoints(release: str, records: Iterable[tuple[bytes, bytes]]) -> list[list[str]]:
    """Return the fields that MirrorMaker 2 reads in records, which it encodes to the same bytes."""
    return _run(release, "decode", stdin="".join(f"{key.hex()} {value.hex()}\n" for key, value in records))


def translate_offsets(
    release: str, bootstrap: str, alias: str, groups: Iterable[str]
) -> dict[str, dict[tuple[str, int], int]]:
    """Return what ``RemoteClusterUtils.translateOffsets`` says of each group, by topic and partition."""
    found: dict[str, dict[tuple[str, int], int]] = {group: {} for group in groups}
    for group, topic, partition, offset in _run(
        release, "translate", bootstrap, alias, stdin="".join(f"{group}\n" for group in found)
    ):
        found[group][topic, int(partition)] = int(offset)
    return found


if __name__ == "__main__":
    for wanted in sys.argv[1:] or RELEASES:
        sys.stdout.write(f"{jars(wanted)}\n")
