# SPDX-License-Identifier: Apache-2.0
"""The installed command as a process, with a real ZooKeeper and no broker: signals, exit codes, health, what it says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from consumerd.aio.loops import explain_loop
from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from consumerd.wire import kernel
from tests.support.daemon import Daemon, settings_for
from tests.support.kafka import free_port
from tests.support.registry import open_registry
from tests.support.waiting import wait_until
from tests.support.zookeeper import make_client


def command(*arguments: str, timeout_s: float = 30.0, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end; what is given by name is added to the environment."""
    return subprocess.run(
        [sys.executable, "-m", "consumerd", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env=os.environ | environment,
    )


@pytest.fixture
def empty(zookeeper: EmbeddedZooKeeper, unique: Callable[[str], str]) -> str:
    """Return the connect string of a chroot with nothing in it: no broker has ever been there."""
    chroot = unique("empty")
    with open_registry(zookeeper.connect_string) as registry:
        registry.client.ensure_path(f"/{chroot}")
    return f"{zookeeper.connect_string}/{chroot}"


def test_the_script_is_installed() -> None:
    """Packaging gives the command its name."""
    script = Path(sys.executable).with_name("consumerd")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, check=False)

    assert done.returncode == 0
    assert done.stdout.startswith("consumerd ")


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("run",),
        ("check-config",),
        ("version",),
        ("topics",),
        ("lag",),
        ("offsets",),
        ("offsets", "show"),
        ("offsets", "export"),
        ("offsets", "set"),
        ("offsets", "reset"),
        ("explain-rebalance",),
    ],
)
def test_every_command_has_help(arguments: tuple[str, ...]) -> None:
    """The first thing that a new user types."""
    done = command(*arguments, "--help")

    assert (done.returncode, done.stderr) == (0, "")
    assert "usage: consumerd" in done.stdout


def test_wrong_settings_are_one_clear_message_and_exit_code_2(tmp_path: Path) -> None:
    """No traceback: the key, the reason, the place."""
    config = tmp_path / "config.yaml"
    config.write_text("cluster: {zookeeper: 'zk:2181'}\ngroup: {id: 'a b'}\n")

    done = command("run", "--config", str(config), "--topics", "orders")

    assert done.returncode == 2
    assert "group.id" in done.stderr
    assert "config.yaml, line 2" in done.stderr
    assert "Traceback" not in done.stderr


def test_check_config_connects_to_nothing(tmp_path: Path) -> None:
    """It works where the cluster cannot be reached: on a laptop, in a pull request."""
    config = tmp_path / "config.yaml"
    config.write_text("cluster: {zookeeper: 'nowhere.invalid:2181'}\ngroup: {id: lake}\n")

    done = command("check-config", "--config", str(config), "--pattern", "web.*", "--exclude", "web[.]debug.*")

    assert (done.returncode, done.stderr) == (0, "")
    assert "the settings are valid" in done.stdout
    assert "pattern web.* without web[.]debug.* -> stdout (stdout)" in done.stdout


def test_check_config_warns_of_a_budget_that_parquet_exceeds(tmp_path: Path) -> None:
    """The container would be killed for want of memory, on a busy day."""
    sink = f"--set=sinks.lake.path={tmp_path}"
    common = ("check-config", "--set=cluster.zookeeper=zk:2181", "--set=group.id=g", "--topics=t", "--sink=lake", sink)
    tight = (*common, "--set=sinks.lake.type=parquet", "--set=fetch.memory_budget_bytes=100000000")
    done = command(*tight)

    assert (done.returncode, done.stderr.count("\n")) == (0, 1)
    assert "warning: fetch.memory_budget_bytes is 100000000" in done.stderr
    assert "give it 134217728 or more" in done.stderr
    assert command(*common, "--set=sinks.lake.type=jsonl", "--set=fetch.memory_budget_bytes=100000000").stderr == ""


def test_a_pattern_that_is_no_expression_is_refused() -> None:
    """Found before it is registered, where every member of the group would read it."""
    done = command("check-config", "--set", "cluster.zookeeper=zk:2181", "--set", "group.id=g", "--pattern", "(")

    assert done.returncode == 2
    assert "pattern" in done.stderr


def test_version_says_what_a_bug_report_needs() -> None:
    """Which kernel and which libraries."""
    done = command("version")

    assert done.returncode == 0
    assert "aiozk 0.32.0" in done.stdout
    assert f"kernel: {kernel.describe()}\n" in done.stdout
    assert f"loop: {explain_loop()}\n" in done.stdout
    assert "parquet" in done.stdout


def test_the_kernel_can_be_switched_off() -> None:
    """To find out whether a fault is the kernel's, on a machine that has no compiler to build without it."""
    done = command("version", CONSUMERD_KERNEL="off")

    assert "kernel: none, pure Python: CONSUMERD_KERNEL=off\n" in done.stdout


def test_uvloop_can_be_switched_off() -> None:
    """To find out whether a fault is the loop's."""
    done = command("version", CONSUMERD_UVLOOP="off")

    assert "loop: asyncio: CONSUMERD_UVLOOP=off\n" in done.stdout


def test_a_one_shot_command_that_reaches_nothing_exits_with_3() -> None:
    """Scripts tell an unreachable cluster from a failure."""
    done = command("topics", "--zookeeper", f"127.0.0.1:{free_port()}", "--timeout", "1")

    assert done.returncode == 3
    assert "127.0.0.1" in done.stderr
    assert "Traceback" not in done.stderr


async def test_without_zookeeper_it_waits_unready_says_so_and_ends_on_sigterm(
    tmp_path: Path, each_loop: Mapping[str, str]
) -> None:
    """A container that starts before its ZooKeeper must not crash, nor spin."""
    settings = settings_for(f"127.0.0.1:{free_port()}", "g", topics=("orders",))
    with Daemon(tmp_path, "d", settings, environment=each_loop) as daemon:
        daemon.wait(lambda: daemon.get("/livez")[0] == 200, "alive")
        code, reasons = daemon.get("/readyz")
        before = _cpu_seconds(daemon.process.pid)
        began = time.monotonic()
        wait_until(lambda: time.monotonic() - began > 2, "two seconds of waiting")
        used = _cpu_seconds(daemon.process.pid) - before

        assert code == 503
        assert "ZooKeeper" in reasons
        assert used < 1.0, "it spins while it waits"
        assert daemon.events("zookeeper_unreachable") or "zookeeper" in daemon.log().lower()
        assert daemon.terminate() == 0


async def test_without_brokers_it_waits_unready_and_leaves_at_once(
    tmp_path: Path, empty: str, each_loop: Mapping[str, str]
) -> None:
    """Registered or not, nothing is consumed; SIGTERM must not wait for a broker that never comes."""
    with Daemon(tmp_path, "d", settings_for(empty, "g", topics=("orders",)), environment=each_loop) as daemon:
        daemon.wait(lambda: daemon.get("/livez")[0] == 200, "alive")
        daemon.wait(lambda: daemon.status()["session_phase"] == "fresh", "a session")
        (started,) = daemon.events("daemon_starting")
        assert daemon.status()["loop"] == started["loop"] == explain_loop(each_loop).partition(":")[0]

        assert daemon.get("/readyz")[0] == 503
        began = time.monotonic()
        assert daemon.terminate() == 0
        assert time.monotonic() - began < 10


def test_sigterm_is_heard_before_anything_is_loaded(tmp_path: Path) -> None:
    """As the first process of a container a program without a handler would not even get the signal."""
    with Daemon(tmp_path, "d", settings_for(f"127.0.0.1:{free_port()}", "g", topics=("orders",))) as daemon:
        wait_until(lambda: _catches(daemon.process.pid, signal.SIGTERM), "a handler", interval_s=0.001)
        began = bool(daemon.events("http_started"))

        assert not began, "it took no signal until it had started"
        assert daemon.terminate() in {0, 128 + signal.SIGTERM}
        assert "Traceback" not in daemon.log()


async def test_ctrl_c_is_a_clean_end(tmp_path: Path, empty: str, each_loop: Mapping[str, str]) -> None:
    """In a terminal people press Ctrl-C, not kill."""
    with Daemon(tmp_path, "d", settings_for(empty, "g", topics=("orders",)), environment=each_loop) as daemon:
        daemon.wait(lambda: daemon.get("/livez")[0] == 200, "alive")
        daemon.process.send_signal(signal.SIGINT)

        assert daemon.wait_end() == 0
        assert "Traceback" not in daemon.log()


async def test_a_taken_port_is_a_setting_that_cannot_work(tmp_path: Path, empty: str) -> None:
    """Two daemons on one host: the second one says which setting to change."""
    with Daemon(tmp_path, "one", settings_for(empty, "g", topics=("orders",))) as one:
        address = one.url.removeprefix("http://").rstrip("/")
        settings = settings_for(empty, "g", topics=("orders",), http={"listen": address})
        with Daemon(tmp_path, "two", settings) as two:
            assert two.wait_end() == 2
            assert "http.listen" in two.log()


async def test_another_groups_path_ends_the_start(tmp_path: Path, empty: str) -> None:
    """Whoever starts it hears of it, not whoever is on call when the first partition is claimed."""
    async with make_client(empty) as client:
        await client.wait_connected()
        await client.ensure_path("/brokers/topics")
        await client.ensure_path("/brokers/ids/0", b'{"version": 1, "host": "127.0.0.1", "port": 9, "jmx_port": -1}')
    landing = tmp_path / "landing"
    landing.mkdir()
    (landing / "_consumerd.json").write_text('{"format": 1, "root": "r", "cluster": "1-1", "group": "theirs"}')
    sink = {"type": "jsonl", "path": str(landing)}

    with Daemon(tmp_path, "d", settings_for(empty, "ours", topics=("t",), sink=sink)) as daemon:
        assert daemon.wait_end() == 2
        assert "belongs to group 'theirs'" in daemon.log()
        assert "Traceback" not in daemon.log()
    assert [path.name for path in landing.iterdir()] == ["_consumerd.json"]


def test_sinks_with_one_path_are_refused_without_a_connection(tmp_path: Path) -> None:
    """check-config finds it, in a pull request."""
    paths = [f"--set=sinks.{name}.{key}={value}" for name in "ab" for key, value in (("type", "jsonl"), ("path", "/x"))]
    done = command(
        "check-config", "--set=cluster.zookeeper=zk:2181", "--set=group.id=g", "--topics", "t", "--sink", "a", *paths
    )

    assert done.returncode == 2
    assert "sinks.b.path: /x is the path of sink 'a'" in done.stderr


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def _catches(pid: int, number: int) -> bool:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False
