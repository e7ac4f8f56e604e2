# SPDX-License-Identifier: Apache-2.0
"""What stands in deploy/spark goes with the code: settings, options, paths, sizes, versions."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from consumerd import __version__
from consumerd.config.job import JobSettings
from consumerd.config.load import load_job_settings
from consumerd.spark.cli import STOP_TIMEOUT_S, make_parser
from consumerd.spark.job import JOBS

ROOT = Path(__file__).parents[2]
SPARK = ROOT / "deploy" / "spark"
KUBERNETES = SPARK / "kubernetes"
DAEMONS = ROOT / "deploy" / "kubernetes"
MIB = 1 << 20

#: what a Python worker may take beside the JVM, for its Arrow batches, and the JVM beside its heap
WORKER_MIB = JVM_MIB = 512


def manifest(name: str, folder: Path = KUBERNETES) -> dict[str, Any]:
    loaded = yaml.safe_load((folder / f"{name}.yaml").read_text())
    assert isinstance(loaded, dict)
    return loaded


CRON_JOBS = {
    "cronjob": ["bronze", "silver", "compact"],
    "cronjob-checks": ["stats", "audit"],
    "cronjob-retention": ["retention"],
}


def pod(name: str = "cronjob") -> dict[str, Any]:
    spec = manifest(name)["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert isinstance(spec, dict)
    return spec


def container(name: str = "cronjob") -> dict[str, Any]:
    (one,) = pod(name)["containers"]
    assert isinstance(one, dict)
    return one


def mounts(name: str = "cronjob") -> dict[Path, dict[str, Any]]:
    return {Path(one["mountPath"]): one for one in container(name)["volumeMounts"]}


@pytest.fixture
def settings() -> JobSettings:
    return load_job_settings(config=KUBERNETES / "config.yaml", environment={})


def test_every_manifest_is_listed() -> None:
    """One that is not, is not applied."""
    kustomization = manifest("kustomization")
    (generated,) = kustomization["configMapGenerator"]
    listed = {*kustomization["resources"], *generated["files"]}

    assert {path.name for path in KUBERNETES.iterdir()} - {"kustomization.yaml"} == listed


def test_the_job_reads_and_writes_where_volumes_are(settings: JobSettings) -> None:
    """Anything else would be gone with the pod, or refused by its file system."""
    claims = {
        one["name"]: one["persistentVolumeClaim"]["claimName"]
        for one in pod()["volumes"]
        if "persistentVolumeClaim" in one
    }

    (root,) = settings.landing_roots()
    assert (
        manifest("persistentvolumeclaim", DAEMONS / "overlays" / "shared-volume")["metadata"]["name"]
        == claims[mounts()[root]["name"]]
    )
    tables = [settings.folder(name) for name in ("bronze", "silver", "quarantine", "latest", "stats")]
    (lake,) = {folder.parent for folder in tables}
    assert manifest("persistentvolumeclaim")["metadata"]["name"] == claims[mounts()[lake]["name"]]
    assert not mounts()[lake].get("readOnly")
    assert Path("/tmp") in mounts()
    assert {name for name in CRON_JOBS if not mounts(name)[root].get("readOnly")} == {"cronjob-retention"}
    assert settings.pipeline.retention.landing_ms, "else the job ends with exit code 2"


@pytest.fixture
def run_jobs(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Start the pods' script with a ``consumerd-spark`` that runs the given shell."""
    script = KUBERNETES / "run-jobs.sh"

    def start(fake: str, *jobs: str) -> subprocess.Popen[str]:
        command = tmp_path / "consumerd-spark"
        command.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path / "ran"}\n{fake}\n')
        command.chmod(0o755)
        return subprocess.Popen(
            ["sh", script, *jobs],
            env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    return start


@pytest.mark.parametrize("name", CRON_JOBS)
def test_the_jobs_are_run_as_the_command_takes_them(
    run_jobs: Callable[..., subprocess.Popen[str]], tmp_path: Path, name: str
) -> None:
    """Through its own parser, so that an option that is renamed fails here."""
    shell, script, *jobs = container(name)["command"]

    assert (shell, Path(script)) == ("sh", Path("/etc/consumerd/run-jobs.sh"))
    assert Path(script).parent in mounts(name)
    assert jobs == CRON_JOBS[name]
    assert set(jobs) <= set(JOBS)
    assert run_jobs("exit 0", *jobs).communicate() == ("", "")
    ran = (tmp_path / "ran").read_text().splitlines()
    parsed = [make_parser().parse_args(line.split()) for line in ran]
    assert [(args.job, args.config, args.json) for args in parsed] == [
        (job, Path("/etc/consumerd/config.yaml"), True) for job in jobs
    ]


@pytest.mark.parametrize(("codes", "worst"), [("1 0 0", 1), ("2 1 0", 2), ("0 137 1", 137), ("0 0 0", 0)], ids=str)
def test_every_job_runs_and_the_worst_exit_code_is_the_pods(
    run_jobs: Callable[..., subprocess.Popen[str]], tmp_path: Path, codes: str, worst: int
) -> None:
    """Findings of bronze neither keep silver from running nor are hidden by its success."""
    jobs = run_jobs(
        f"set -- {codes}; shift $(($(wc -l < {tmp_path / 'ran'}) - 1)); exit $1", "bronze", "silver", "compact"
    )
    _, err = jobs.communicate()

    assert (jobs.returncode, err) == (worst, "")
    assert [line.split()[0] for line in (tmp_path / "ran").read_text().splitlines()] == ["bronze", "silver", "compact"]


def test_sigterm_reaches_the_running_job_and_ends_the_run(
    run_jobs: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    """The job stops Spark and writes its metrics. The shell waits, and starts no other."""
    fake = "trap 'sleep 0.2; echo stopped; exit 143' TERM; echo running; for n in $(seq 3000); do sleep 0.01; done"
    jobs = run_jobs(fake, "bronze", "silver")
    try:
        assert jobs.stdout is not None
        assert jobs.stdout.readline() == "running\n"
        jobs.send_signal(signal.SIGTERM)
        out, _ = jobs.communicate()
    finally:
        jobs.kill()

    assert (jobs.returncode, out) == (143, "stopped\n")
    assert len((tmp_path / "ran").read_text().splitlines()) == 1


@pytest.mark.parametrize("name", CRON_JOBS)
def test_a_late_start_and_a_run_that_hangs_end_before_they_hold_up_later_ones(name: str) -> None:
    """The controller looks every 10 s: a shorter deadline for the start may never be met."""
    schedule = manifest(name)["spec"]["schedule"]
    minutes = schedule.split()[0]
    interval_s = 60 * int(minutes[2:]) if minutes.startswith("*/") else 3600

    assert 10 < manifest(name)["spec"]["startingDeadlineSeconds"] < interval_s, "else it starts together with the next"
    assert pod(name)["activeDeadlineSeconds"] > 10 * pod(name)["terminationGracePeriodSeconds"]
    assert pod(name)["activeDeadlineSeconds"] <= 6 * interval_s, "an hour of silence is what the alerts wait for"


@pytest.mark.parametrize("name", CRON_JOBS)
def test_a_run_that_has_failed_keeps_its_pod_and_its_log(name: str) -> None:
    """A Job's deadline deletes the pod; a second run would hide the first one's findings."""
    job = manifest(name)["spec"]["jobTemplate"]["spec"]

    assert job["backoffLimit"] == 0
    assert "activeDeadlineSeconds" not in job
    assert pod(name)["restartPolicy"] == "Never"
    assert pod(name)["activeDeadlineSeconds"] > 0
    assert pod(name)["terminationGracePeriodSeconds"] > STOP_TIMEOUT_S
    assert manifest(name)["spec"]["concurrencyPolicy"] == "Forbid"
    assert manifest(name)["spec"]["failedJobsHistoryLimit"] >= 3


def test_the_cron_jobs_differ_in_their_jobs_and_in_what_they_may_write() -> None:
    """A setting that is mended in one of them is mended in all."""

    def rest(name: str) -> dict[str, Any]:
        whole = manifest(name)
        del whole["metadata"]["name"], whole["spec"]["schedule"]
        whole["spec"].pop("suspend", None)
        (one,) = whole["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
        del one["command"], one["resources"]
        for mount in one["volumeMounts"]:
            if mount["name"] == "landing":
                mount.pop("readOnly", None)
        return whole

    assert rest("cronjob-checks") == rest("cronjob")
    assert rest("cronjob-retention") == rest("cronjob")
    assert container("cronjob-checks")["resources"] == container()["resources"]


def test_what_deletes_is_suspended_until_somebody_decides() -> None:
    """Whoever applies the folder over an old landing zone must not lose files by it."""
    suspended = {name for name in CRON_JOBS if manifest(name)["spec"].get("suspend")}

    assert suspended == {"cronjob-retention"}


def test_the_memory_limit_holds_what_spark_takes(settings: JobSettings) -> None:
    """Else the kernel ends the pod in the middle of a run."""
    session = settings.pipeline.spark
    cores = int(re.fullmatch(r"local\[(\d+)\]", session.master or "")[1])  # type: ignore[index] - fails the test
    heap = int(re.fullmatch(r"(\d+)g", session.driver_memory)[1]) << 10  # type: ignore[index] - fails the test
    limit = int(re.fullmatch(r"(\d+)Mi", container()["resources"]["limits"]["memory"])[1])  # type: ignore[index] - as above

    assert limit >= heap + JVM_MIB + cores * WORKER_MIB
    assert container()["resources"]["requests"]["memory"] == container()["resources"]["limits"]["memory"]


def test_the_image_is_of_this_version_and_can_be_built() -> None:
    """The extras that its comment names are those of the package, and bring pyspark and a Java."""
    text = "".join((KUBERNETES / f"{name}.yaml").read_text() for name in CRON_JOBS)
    tags = re.findall(r"consumerd-spark:([\d.]+\d)", text)
    (extras,) = re.findall(r"EXTRAS=(\S+)", text)
    known = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)

    assert {__version__} == set(tags)
    assert {"spark", "java"} <= set(extras.split(",")) <= set(known)
    assert "ARG EXTRAS=" in (ROOT / "Dockerfile").read_text()


def test_nobody_is_root() -> None:
    """As the daemons' pods: the same user, who owns what they have landed."""
    daemons = manifest("deployment", DAEMONS / "base")["spec"]["template"]["spec"]

    assert daemons["securityContext"] == pod()["securityContext"]
    assert daemons["containers"][0]["securityContext"] == container()["securityContext"]


@pytest.mark.parametrize("where", ["standalone", "yarn", "kubernetes"])
def test_spark_submit_is_given_our_program_and_its_arguments(tmp_path: Path, where: str) -> None:
    """With a ``spark-submit`` that says what it was given."""
    fake = tmp_path / "spark-submit"
    fake.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    fake.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "MASTER": "spark://here:7077", "IMAGE": "image"}
    ran = subprocess.run(
        [SPARK / "spark-submit.sh", where, "bronze", "--config", "a b.yaml"],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    given = ran.stdout.splitlines()

    at = next(place for place, word in enumerate(given) if word.endswith("consumerd_job.py"))
    assert ["bronze", "--config", "a b.yaml"] == given[at + 1 :]
    assert where == "kubernetes" or Path(given[at]).exists()
    confs = dict(word.split("=", 1) for before, word in itertools.pairwise(given) if before == "--conf")
    assert "UTC" == confs["spark.sql.session.timeZone"]
    assert all(key.startswith("spark.") and value for key, value in confs.items())
    claims = {value for key, value in confs.items() if key.endswith("claimName")}
    if where == "kubernetes":
        driver = {key.replace(".driver.", "."): value for key, value in confs.items() if ".driver.volumes." in key}
        executor = {
            key.replace(".executor.", "."): value for key, value in confs.items() if ".executor.volumes." in key
        }
        assert driver == executor
        assert {"consumerd-landing", "consumerd-lake"} == claims


def test_spark_submit_wants_a_place_that_it_knows() -> None:
    """A misspelt one must not run somewhere else."""
    ran = subprocess.run([SPARK / "spark-submit.sh", "mesos", "bronze"], capture_output=True, text=True, check=False)

    assert (2, True) == (ran.returncode, "expected standalone, yarn or kubernetes" in ran.stderr)


def test_the_program_is_the_command() -> None:
    """What executors and drivers get is no second implementation."""
    ran = subprocess.run(
        [sys.executable, SPARK / "consumerd_job.py", "--version"], capture_output=True, text=True, check=True
    )

    assert f"consumerd {__version__}\n" == ran.stdout
