# SPDX-License-Identifier: Apache-2.0
"""Tries a container image as an orchestrator would run it: its own user, command, health check and stop signal.

``python -m tests.image.landing --image IMAGE --directory FOLDER -- buildah [OPTION...]``. Raises where something is not as
it should be. The container shares the network of this machine; the cluster is the embedded one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import trustme
import yaml

from consumerd import __version__
from tests.support.daemon import settings_for
from tests.support.embedded import EmbeddedProcess
from tests.support.landing_reader import read_landing
from tests.support.waiting import wait_until

TOPIC: Final = "orders"
PARTITIONS: Final = 4
RECORDS: Final = 20_000
LANDING: Final = "/var/lib/consumerd/landing"
TOKEN: Final = "t0ken"
#: files that the container's runtime writes
OF_THE_RUNTIME: Final = {"etc/hosts", "etc/resolv.conf", "etc/hostname", "run/.containerenv"}


def say(text: str) -> None:
    """Tell whoever watches."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """What an image says of how it is run."""

    name: str
    user: int
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    health: tuple[str, ...]
    stop_signal: signal.Signals
    port: int


class Buildah:
    """One installation of buildah: its program and the options that say where its storage is."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = tuple(command)

    def do(self, *arguments: str) -> str:
        """Run to the end and return what was printed. Raises CalledProcessError."""
        done = subprocess.run([*self._command, *arguments], capture_output=True, text=True, timeout=120, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"buildah {' '.join(arguments)}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout.strip()

    def start(self, *arguments: str, log: Path) -> subprocess.Popen[bytes]:
        """Start something in a container."""
        with log.open("ab") as out:
            return subprocess.Popen(
                [*self._command, "run", *arguments], stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )

    def inspect(self, name: str) -> Image:
        """Return what an image says of itself."""
        told: Mapping[str, Any] = json.loads(self.do("inspect", "--type", "image", name))["Docker"]["config"]
        kind, *health = told["Healthcheck"]["Test"]
        assert kind == "CMD"
        (exposed,) = told["ExposedPorts"]
        return Image(
            name=name,
            user=int(told["User"]),
            entrypoint=tuple(told["Entrypoint"]),
            command=tuple(told["Cmd"]),
            health=tuple(health),
            stop_signal=signal.Signals[told["StopSignal"]],
            port=int(exposed.removesuffix("/tcp")),
        )


def last_child(pid: int) -> int:
    """Return the end of a line of processes, each the only child of the one before."""
    while True:
        tasks = Path(f"/proc/{pid}/task").iterdir()
        children = [int(child) for task in tasks for child in (task / "children").read_text().split()]
        if not children:
            return pid
        (pid,) = children


def users(pid: int) -> set[int]:
    """Return the real, effective, saved and file system user of a process."""
    (line,) = (one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith("Uid:"))
    return set(map(int, line.split()[1:]))


def get(url: str) -> tuple[int, str]:
    """Return status code and body; 0 while nobody listens."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {TOKEN}"})
    try:
        with urllib.request.urlopen(request, timeout=5, context=ssl._create_unverified_context()) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError:
        return 0, ""


def written(root: Path, since: float) -> set[str]:
    """Return the files of a root file system that were written after a moment, those of the runtime left out."""
    found = set()
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder, name)
            if path.lstat().st_mtime >= since:
                found.add(path.relative_to(root).as_posix())
    return found - OF_THE_RUNTIME


@contextlib.contextmanager
def running(buildah: Buildah, *arguments: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run something in a container while the block runs; it is killed where the block does not end it."""
    process = buildah.start(*arguments, log=log)
    try:
        yield process
    except BaseException:
        say(log.read_text(errors="replace")[-4000:])
        raise
    finally:
        if process.poll() is None:
            os.kill(last_child(process.pid), signal.SIGKILL)
            process.wait(10)


def consumed(url: str) -> int:
    """Return how many records the daemon says that it has consumed."""
    code, body = get(f"{url}/api/v1/status")
    return sum(one["position"] or 0 for one in json.loads(body)["partitions"]) if code == 200 else 0


def write_secrets(folder: Path, user: int) -> dict[str, str]:
    """Write a certificate, its key and a token for the status port, and return the settings that name them."""
    issued = trustme.CA().issue_cert("daemon.example")
    texts = {
        "certificate_file": b"".join(one.bytes() for one in issued.cert_chain_pems),
        "key_file": issued.private_key_pem.bytes(),
        "token_file": TOKEN.encode(),
    }
    for name, text in texts.items():
        (folder / name).write_bytes(text)
        (folder / name).chmod(0o400)
        os.chown(folder / name, user, user)
    return {name: f"/etc/consumerd/{name}" for name in texts}


def land(buildah: Buildah, image: Image, cluster: EmbeddedProcess, directory: Path) -> None:
    """Run the image until everything has been consumed, ask for its health, stop it, and read the files.

    The status port has TLS and a token, as where others can reach it. Nothing is written outside of the volume, so the
    root may be read-only.
    """
    settings, landing = directory / "settings", directory / "landing"
    settings.mkdir()
    landing.mkdir()
    os.chown(landing, image.user, image.user)
    # the mounted file wins over the address that the image sets
    http = {"listen": f"127.0.0.1:{image.port}", **write_secrets(settings, image.user)}
    sections = settings_for(
        cluster.zookeeper, "lake", topics=(TOPIC,), sink={"type": "parquet", "path": LANDING}, http=http
    )
    (settings / "config.yaml").write_text(yaml.safe_dump(sections))
    container = buildah.do("from", "--pull-never", image.name)
    root = Path(buildah.do("mount", container))
    (root / LANDING.lstrip("/")).mkdir()  # where the volume is mounted
    before, url = time.time(), f"https://127.0.0.1:{image.port}"
    with running(
        buildah,
        "--cap-drop=all",
        f"--volume={settings}:/etc/consumerd:ro",
        f"--volume={landing}:{LANDING}:rw",
        container,
        "--",
        *image.entrypoint,
        *image.command,
        log=directory / "container.log",
    ) as process:
        wait_until(lambda: process.poll() is not None or consumed(url) == RECORDS, "everything is consumed", 60)
        assert process.poll() is None, "it has ended"
        assert get(f"{url}/readyz") == (200, "ok\n")
        buildah.do("run", container, "--", *image.health)
        daemon = last_child(process.pid)
        assert users(daemon) == {image.user}
        os.kill(daemon, image.stop_signal)
        assert process.wait(30) == 0
    assert written(root, before) == set(), "files outside of the volume"
    landed = read_landing(landing)
    assert landed.problems == []
    values = [record.value for one in landed.partitions.values() for record in one.records]
    assert len(values) == RECORDS
    assert set(values) == {b"v%d" % number for number in range(RECORDS)}


def main() -> None:
    """Try the image."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--image", required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("buildah", nargs="+")
    args = parser.parse_args()
    buildah = Buildah(args.buildah)
    image = buildah.inspect(args.image)
    container = buildah.do("from", "--pull-never", image.name)
    said = buildah.do("run", container, "--", *image.entrypoint, "version")
    assert said.startswith(f"consumerd {__version__}\n"), said
    assert "\nkernel: native " in said, said
    say(said)
    with EmbeddedProcess(args.directory / "cluster") as cluster:
        cluster.create_topic(TOPIC, PARTITIONS)
        cluster.produce(TOPIC, b"".join(b"k%d\tv%d\n" % (number, number) for number in range(RECORDS)))
        began = time.monotonic()
        land(buildah, image, cluster, args.directory)
    say(
        f"landed {RECORDS:,} records, each once, as user {image.user}, in {time.monotonic() - began:.1f} s; stopped in order"
    )


if __name__ == "__main__":
    main()
