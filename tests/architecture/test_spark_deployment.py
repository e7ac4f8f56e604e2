"""What stands in deploy/spark goes with the code: settings, options, paths, sizes, versions."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from consumerd import __version__
from consumerd.config.job import JobSettings
from consumerd.config.load import load_job_settings
from consumerd.spark.cli import make_parser
from consumerd.spark.job import JOBS

ROOT = Path(__file__).parents[2]
SPARK = ROOT / "deploy" / "spark"
KUBERNETES = SPARK / "kubernetes"
MIB = 1 << 20

#: what a Python worker may take beside the JVM, for its Arrow batches, and the JVM beside its heap
WORKER_MIB = JVM_MIB = 512


def manifest(name: str, folder: Path = KUBERNETES) -> dict[str, Any]:
    loaded = yaml.safe_load((folder / f"{name}.yaml").read_text())
    assert isinstance(loaded, dict)
    return loaded


def pod() -> dict[str, Any]:
    spec = manifest("cronjob")["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert isinstance(spec, dict)
    return spec


def container() -> dict[str, Any]:
    (one,) = pod()["containers"]
    assert isinstance(one, dict)
    return one


@pytest.fixture
def settings(tmp_path: Path) -> JobSettings:
    path = tmp_path / "config.yaml"
    path.write_text(manifest("configmap")["data"]["config.yaml"])
    return load_job_settings(config=path, environment={})


def test_every_manifest_is_listed() -> None:
    """One that is not, is not applied."""
    listed = manifest("kustomization")["resources"]

    assert {path.name for path in KUBERNETES.iterdir()} - {"kustomization.yaml"} == set(listed)


def test_the_job_reads_and_writes_where_volumes_are(settings: JobSettings) -> None:
    """Anything else would be gone with the pod, or refused by its file system."""
    mounts = {Path(one["mountPath"]): one for one in container()["volumeMounts"]}
    claims = {
        one["name"]: one["persistentVolumeClaim"]["claimName"]
        for one in pod()["volumes"]
        if "persistentVolumeClaim" in one
    }

    (root,) = settings.landing_roots()
    assert (
        manifest("persistentvolumeclaim", ROOT / "deploy" / "kubernetes")["metadata"]["name"]
        == claims[mounts[root]["name"]]
    )
    assert mounts[root]["readOnly"]
    tables = [settings.folder(name) for name in ("bronze", "silver", "quarantine", "latest", "stats")]
    (lake,) = {folder.parent for folder in tables}
    assert manifest("persistentvolumeclaim")["metadata"]["name"] == claims[mounts[lake]["name"]]
    assert not mounts[lake].get("readOnly")
    assert Path("/tmp") in mounts


def test_the_jobs_are_run_as_the_command_takes_them() -> None:
    """Through its own parser, so that an option that is renamed fails here."""
    shell, flag, script = container()["command"]
    (jobs,) = re.findall(r"for job in (.*); do", script)
    (line,) = re.findall(r"consumerd-spark \$job (.*) \|\|", script)

    assert ("sh", "-c") == (shell, flag)
    assert set(jobs.split()) <= set(JOBS)
    for job in jobs.split():
        args = make_parser().parse_args([job, *line.split()])
        assert (Path("/etc/consumerd/config.yaml"), True) == (args.config, args.json)
    subprocess.run(["sh", "-n", "-c", script], check=True)


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
    text = (KUBERNETES / "cronjob.yaml").read_text()
    tags = re.findall(r"consumerd-spark:([\d.]+\d)", text)
    (extras,) = re.findall(r"EXTRAS=(\S+)", text)
    known = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)

    assert {__version__} == set(tags)
    assert {"spark", "java"} <= set(extras.split(",")) <= set(known)
    assert "ARG EXTRAS=" in (ROOT / "Dockerfile").read_text()


def test_nobody_is_root() -> None:
    """As the daemons' pods: the same user, who owns what they have landed."""
    daemons = yaml.safe_load((ROOT / "deploy" / "kubernetes" / "deployment.yaml").read_text())["spec"]["template"][
        "spec"
    ]

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
