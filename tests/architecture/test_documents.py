# SPDX-License-Identifier: Apache-2.0
"""README and docs say nothing that is not so: commands, options, paths, links, settings, metrics, troubles and fields.

Code blocks that a test runs bear the mark ``<!-- tested by PATH -->``; the others are in ``NOT_RUN``, with the reason.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Final, get_args, get_origin, get_type_hints

import pytest
import trustme
import yaml
from pydantic import BaseModel

from consumerd.cli.main import make_parser
from consumerd.config.connector import ConnectorSettings
from consumerd.config.inspection import InspectionSettings
from consumerd.config.load import load_settings
from consumerd.config.settings import Settings
from consumerd.daemon import events, status
from consumerd.spark.cli import make_parser as make_spark_parser
from consumerd.telemetry.hooks import Trouble
from tests.newuser.commands import find_commands_of_a_new_user
from tests.support.documents import (
    DOCS,
    README,
    TOP,
    Block,
    find_blocks,
    find_documents,
    find_links,
    find_slugs,
    read_table,
)
from tests.support.metrics_page import list_series, list_series_of_jobs

HERE: Final = "tests/architecture/test_documents.py"
DOCUMENTS: Final = [*find_documents(), TOP / "CONTRIBUTING.md"]
PROGRAMS: Final = {"consumerd": make_parser, "consumerd-spark": make_spark_parser}
KAFKAS_KEY: Final = re.compile(r".*\.(ms|bytes|minutes|retries|size)")
"""A setting of brokers or Java consumers, which looks like ours but for its unit."""
MODULES: Final = {"consumerd_sink_sqlite", "consumerd_spark", "consumerd_job"}
"""Names of Python modules that look like metrics."""


def name(value: object) -> str:
    return str(value.relative_to(TOP)) if isinstance(value, Path) else str(value)


# -- commands


def find_commands(document: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield where a command of ours stands, and its words: lines of blocks, and inline code."""
    text = document.read_text()
    for block in find_blocks(document):
        if block.language in ("", "sh", "bash", "console"):
            for number, line in enumerate(join_lines(block.text), block.line + 1):
                for command in re.split(r"\s\|\s|&&|;", re.sub(r"\s+# .*|\s{3,}\S.*", "", cut_comment(line))):
                    yield from as_command(f"{document.name}:{number}", command)
    for match in re.finditer(r"(?<!`)`(consumerd(?:-spark)? [^`\n]+)`(?!`)", text):
        yield from as_command(f"{document.name}:{text.count(chr(10), 0, match.start()) + 1}", match[1])


def cut_comment(line: str) -> str:
    """Cut what a document says beside a command: options follow by one or two spaces, words about it by more."""
    return line.split("  # ", 1)[0]


def join_lines(text: str) -> list[str]:
    return re.sub(r"\\\n\s*", "", text).splitlines()


def as_command(where: str, text: str) -> Iterator[tuple[str, list[str]]]:
    words = re.sub(r"^(\$ |\S*venv/bin/|exec |\./)", "", text.strip()).split()
    if words and words[0] in PROGRAMS and len(words) > 1:
        try:
            yield where, shlex.split(" ".join(words))
        except ValueError:
            yield where, words


COMMANDS: Final = [found for document in DOCUMENTS for found in find_commands(document)]


def subparsers(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return action.choices
    return {}


def explain_command(words: list[str]) -> str | None:
    """Return what is wrong with a command, if anything is."""
    parser = PROGRAMS[words[0]]()
    rest = words[1:]
    while rest and (choices := subparsers(parser)):
        if rest[0].startswith("-"):
            break
        choice = rest.pop(0)
        alternatives = [one.strip() for one in choice.split("|")] if "|" in choice else [choice]
        if unknown := [one for one in alternatives if one not in choices and not one.isupper()]:
            return f"there is no {' '.join(unknown)}: there is {', '.join(choices)}"
        known = [one for one in alternatives if one in choices]
        if not known:
            return None  # JOB, COMMAND: a word that stands for any
        parser = choices[known[0]]
    options = {option for action in parser._actions for option in action.option_strings}
    given = [word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)]
    missing = [option for option in given if option not in options]
    return f"has no option {', '.join(missing)}" if missing else None


def test_commands_are_found() -> None:
    """A pattern that finds nothing would let everything pass."""
    first = {words[1] for _, words in COMMANDS if words[0] == "consumerd"}

    assert {"run", "lag", "offsets", "doctor", "produce", "quarantine", "broker", "topics", "check-config"} <= first
    assert len(COMMANDS) > 80


@pytest.mark.parametrize(
    "bad", ["consumerd rnu", "consumerd lag --grup x", "consumerd offsets move", "consumerd-spark broze"]
)
def test_wrong_commands_are_seen(bad: str) -> None:
    """On commands that nobody has."""
    assert explain_command(bad.split()) is not None


def test_documented_commands_and_options_exist() -> None:
    """What people type first is what stands in the documents."""
    wrong = [f"{where}: {shlex.join(words)}: {why}" for where, words in COMMANDS if (why := explain_command(words))]

    assert wrong == []


def test_documented_make_targets_exist() -> None:
    """`make` says "no rule" and nothing else."""
    targets = set(re.findall(r"^([a-z-]+):", (TOP / "Makefile").read_text(), re.MULTILINE))
    named = {
        (document.name, target)
        for document in DOCUMENTS
        for target in re.findall(r"(?:^|`)make ([a-z][a-z-]*)", document.read_text(), re.MULTILINE)
    }

    assert sorted(one for one in named if one[1] not in targets) == []
    assert len(named) > 10


# -- links and paths


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_links_lead_somewhere(document: Path) -> None:
    """Files and folders of the repository, and headings in them."""
    dead = []
    for target in find_links(document):
        path, _, anchor = target.partition("#")
        place = (document.parent / path).resolve() if path else document
        if not place.exists():
            dead.append(f"{target}: there is no such file")
        elif anchor and place.suffix == ".md" and anchor not in find_slugs(place):
            dead.append(f"{target}: {place.name} has no such heading")

    assert dead == []


PATH: Final = re.compile(
    r"(?<![\w/.<-])((?:consumerd|tests|docs|deploy|bench)/[\w./*{},-]*[\w*}]|[A-Za-z_.-]+\.(?:py|toml|cfg))(?![\w/])"
)


def expand(pattern: str) -> list[str]:
    """Return what a shell makes of braces."""
    match = re.search(r"\{([^{}]*)\}", pattern)
    if match is None:
        return [pattern]
    return [
        one for part in match[1].split(",") for one in expand(pattern[: match.start()] + part + pattern[match.end() :])
    ]


def find_paths(document: Path) -> Iterator[str]:
    """Yield paths of this repository in inline code."""
    prose = re.sub(r"^ *```.*?^ *```", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)
    for code in re.findall(r"`([^`\n]+)`", prose):
        for match in PATH.finditer(code):
            # A and B stand for any name
            if "/" in match[1] and not re.search(r"[/_][A-Z](?![A-Za-z])", match[1]):
                yield from expand(match[1])


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_paths_of_the_repository_exist(document: Path) -> None:
    """Tests and modules that a document names, with their wild cards."""
    missing = [
        path
        for path in find_paths(document)
        if not any(TOP.glob(path.rstrip("/"))) and not any(TOP.glob(f"{path}.py")) and not is_znode(path)
    ]

    assert missing == []


SCRIPTS: Final = (TOP / "Makefile", TOP / ".ci/run", TOP / ".ci/full", TOP / "tests/sanitized/run")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_tests_that_a_script_runs_exist(script: Path) -> None:
    """A test that was moved would be missed by steps that run at the end of CI, or by hand."""
    # make writes $(addprefix tests/unit/,wire net) for two paths
    text = re.sub(
        r"\$\(addprefix ([^,]*),([^$()]*)\)",
        lambda match: " ".join(match[1] + word for word in match[2].split()),
        script.read_text(),
    )
    named = {path for match in re.findall(r"(?<![\w/.-])tests/[\w./*{},-]*[\w*}]", text) for path in expand(match)}

    assert sorted(path for path in named if not any(TOP.glob(path))) == []
    assert named


def test_the_map_of_the_code_names_files() -> None:
    """A newcomer opens them one after the other: whoever moves a module mends "Where to look" in architecture.md."""
    _, _, section = (DOCS / "architecture.md").read_text().partition("### Where to look\n")
    named = set(re.findall(r"`([a-z_]+(?:/[a-z_]+)+)`", section.partition("\n## ")[0]))

    assert sorted(path for path in named if not (TOP / "consumerd" / f"{path}.py").is_file()) == []
    assert len(named) > 20


def is_znode(path: str) -> bool:
    """Tell whether a path lies in ZooKeeper, below a group: ``consumerd/members``."""
    return path.split("/")[1] in {"members", "requests", "roots", "landed", "truncations", "quarantine_root"}


def is_read_by(block: Block, test: str) -> bool:
    """Tell whether a test that a block names reads the document: by its name, or as one of all."""
    text = (TOP / test).read_text()
    return block.document.stem in text or "find_documents()" in text


def test_marks_name_the_test_that_runs_the_block() -> None:
    """A mark is a promise: the test names the document, reads them all, or is this one."""
    marked = [(block, test) for document in DOCUMENTS for block in find_blocks(document) for test in block.tests]
    broken = [
        f"{block}: {test}"
        for block, test in marked
        if not (TOP / test).is_file() or (test != HERE and not is_read_by(block, test))
    ]

    assert broken == []
    assert len(marked) > 8


DRAWING: Final = "a drawing"
KUBERNETES: Final = "needs a Kubernetes cluster; tests/architecture/test_manifests.py renders what is applied"
COMPOSE: Final = "needs Docker; tests/architecture/test_deployment.py reads the file"
DEVELOP: Final = "runs tests, within a test"
WORKED: Final = "tests/architecture/test_contributing.py runs the example"
NOT_RUN: Final[Mapping[tuple[str, str], str]] = {
    ("README.md", "TOPIC   PRODUCED"): ("output of the demo, which tests/e2e/test_demo.py runs"),
    ("README.md", ". .venv/bin/activate"): "tests/e2e/test_broker_command.py starts that broker",
    ("README.md", "pip install '.[spark,java]'"): "tests/newuser/run installs these extras as docs/spark.md says",
    ("architecture.md", "ZooKeeper (aiozk)"): DRAWING,
    ("architecture.md", "socket -> connection"): DRAWING,
    ("architecture.md", "send, enqueue -> encoder"): DRAWING,
    ("spark.md", "consumerd-spark replay --map"): "needs a target; tests/spark/test_replay_map.py restores a topic",
    ("kafka-0.7.md", "broker-1 was stopped"): "output of the demo, which tests/e2e/test_demo.py runs",
    ("deployment.md", "docker build -t consumerd:0.2.0 ."): "needs Docker; tests/image/run builds and starts the image",
    ("deployment.md", "kubectl apply -k deploy/kubernetes"): KUBERNETES,
    ("deployment.md", "kubectl apply -k deploy/kubernetes/overlays/shared-volume"): KUBERNETES,
    ("deployment.md", "docker compose -f deploy/docker-compose.yml up --build --detach"): COMPOSE,
    ("deployment.md", "useradd --system --home-dir /var/lib/consumerd consumerd"): (
        "needs root and changes the host; tests/architecture/test_deployment.py checks the unit and its paths"
    ),
    ("deployment.md", "/opt/consumerd/bin/consumerd check-config --config /etc/consumerd/config.yaml"): (
        "needs systemd as PID 1; tests/e2e/test_service_manager.py plays the service manager"
    ),
    ("file-formats.md", "/data/landing/"): DRAWING,
    ("security.md", "keytool -importkeystore -srckeystore trust.jks -destkeystore trust.p12 -deststoretype PKCS12"): (
        "needs stores of a Java client"
    ),
    ("security.md", "kafka-configs --zookeeper zk1:2181/kafka --alter --entity-type users --entity-name lake \\"): (
        "Kafka's own tools; tests/interop/test_acls.py runs the commands that the daemon prints"
    ),
    ("embedded.md", "# users: USER:PASSWORD; the file is refused if everybody can read it"): (
        "two files, whose form tests/component/embedded/test_secured.py and tests/unit/embedded/test_acls.py read"
    ),
    ("security.md", "addauth digest lake:password"): "ZooKeeper's own shell, which no test starts",
    ("file-formats.md", "{"): "a line of output, whose keys tests/e2e/test_documented_reading.py compares",
    ("http-sink.md", '"<cluster>/<topic>'): "a header, whose form tests/component/sinks/test_http_sink.py compares",
    ("mirror.md", "consumerd mirror --zookeeper"): (
        "needs two clusters; tests/e2e/test_mirror_command.py gives such options, and the same settings"
    ),
    ("mirror.md", "consumerd-mirror:["): "an envelope, whose form tests/unit/mirror/test_provenance.py compares",
    ("group-machine.md", "stateDiagram-v2"): "tests/architecture/test_machine_diagram.py compares it with the code",
    ("classic-group-machine.md", "stateDiagram-v2"): "tests/architecture/test_machine_diagram.py compares it",
    ("without-zookeeper.md", "cluster:"): "tests/unit/admin/test_without_zookeeper.py loads these settings",
    ("without-zookeeper.md", "$ consumerd identities"): "tests/e2e/test_leaving_zookeeper.py gives this command",
    ("without-zookeeper.md", "$ consumerd lag --bootstrap"): "tests/interop/test_kraft.py gives these commands",
    ("troubles.md", "sum by (kind) (increase(consumerd_troubles_total[10m]))"): (
        "a query for Prometheus, whose series test_documented_metrics_exist knows"
    ),
    ("CONTRIBUTING.md", "git clone https://github.com/consumerd/consumerd.git && cd consumerd"): (
        "tests/newuser/run clones the repository and makes an environment"
    ),
    ("CONTRIBUTING.md", "--- a/tests/unit/telemetry/test_wording.py"): WORKED,
    ("CONTRIBUTING.md", "--- a/consumerd/telemetry/wording.py"): WORKED,
    ("CONTRIBUTING.md", ".venv/bin/python -m pytest tests/unit/telemetry/test_wording.py"): WORKED,
    ("CONTRIBUTING.md", ".venv/bin/python -m pytest tests/unit"): DEVELOP,
    ("CONTRIBUTING.md", 'telemetry: say "none" for an empty list in a message'): "a commit message",
    (
        "CONTRIBUTING.md",
        ".venv/bin/python -m pytest tests/unit/offsets/test_tracker.py",
    ): DEVELOP,
}
"""Blocks that no test runs, by document and how they begin, with the reason."""


def find_reason(block: Block) -> tuple[str, str] | None:
    """Return the entry of NOT_RUN that a block has, the longest if there are several, or None."""
    text = block.text.strip()
    found = [entry for entry in NOT_RUN if entry[0] == block.document.name and text.startswith(entry[1])]
    return max(found, key=lambda entry: len(entry[1]), default=None)


def test_each_block_is_run_or_says_why_not() -> None:
    """A block that nobody runs is wrong one day. Mark it with its test, or name it in NOT_RUN."""
    unmarked = [block for document in DOCUMENTS for block in find_blocks(document) if not block.tests]
    reasons = {str(block): find_reason(block) for block in unmarked}

    assert [block for block, reason in reasons.items() if reason is None] == []
    assert sorted(NOT_RUN.keys() - set(reasons.values())) == []


def test_a_bare_system_runs_what_needs_nothing_of_somebody() -> None:
    """A command that needs a cluster, or a path that only its owner has, fails in the run that takes longest."""
    commands = list(find_commands_of_a_new_user())

    assert [one for one in commands if re.match(r"consumerd |.*(zk1|--config config\.yaml|/data/)", one)] == []
    assert [one for one in commands if one.startswith(("make ", "python3 "))] == [
        "make demo",
        "python3 -m venv venv",
        "make test      # everything that needs no Kafka; makes .venv, brings a real ZooKeeper from PyPI",
        "make check     # lint, types, layers",
        "make help",
        'make demo DEMO="--directory landed"',
        "python3 -m venv spark-venv",
    ]


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_blocks_of_code_have_fences(document: Path) -> None:
    """An indented block has neither a language nor a mark, and so no test."""
    prose = re.sub(r"^ *```.*?^ *```$", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)

    assert re.findall(r"^    (?:consumerd|make|pip|python|curl|kubectl|docker)\b.*", prose, re.MULTILINE) == []


@pytest.mark.parametrize("path", sorted({reason.split()[0] for reason in NOT_RUN.values() if "/" in reason.split()[0]}))
def test_reasons_name_tests_that_exist(path: str) -> None:
    """A block is left to another test only while there is one."""
    assert (TOP / path).is_file()


# -- settings and metrics


def find_keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for key, field in model.model_fields.items():
        yield f"{prefix}{key}"
        kinds = [field.annotation, *get_args(field.annotation)]
        for kind in kinds:
            for inner in (kind, *get_args(kind)):
                if isinstance(inner, type) and issubclass(inner, BaseModel):
                    yield from find_keys(inner, f"{prefix}{key}.")


def known_keys() -> set[str]:
    return {*find_keys(Settings), *find_keys(InspectionSettings), *find_keys(ConnectorSettings)}


SECTIONS: Final = "|".join(key for key in Settings.model_fields if key != "sinks")
KEY: Final = re.compile(rf"(?<![\w./-])((?:{SECTIONS})(?:\.[a-z_]+)+)(?![\w/(*-])")


def test_documented_settings_exist() -> None:
    """A key that was renamed sends people to a refusal."""
    known = known_keys()
    unknown = []
    for document in DOCUMENTS:
        for code in re.findall(r"`([^`\n]+)`", document.read_text()):
            # attributes of modules and file names look alike
            unknown += [
                f"{document.name}: {key}"
                for key in KEY.findall(code)
                if key not in known
                and not KAFKAS_KEY.fullmatch(key)
                and not is_module(key)
                and not key.endswith((".json", ".py", ".yaml"))
            ]

    assert unknown == []
    assert "fetch.memory_budget_bytes" in known


def is_module(key: str) -> bool:
    """Tell whether a dotted name is one of our modules or of what is in one."""
    parts = key.split(".")
    package = TOP / "consumerd"
    return any(
        (package / Path(*parts[:depth])).with_suffix(".py").is_file() or (package / Path(*parts[:depth])).is_dir()
        for depth in range(2, len(parts) + 1)
    )


@pytest.mark.parametrize("block", [one for doc in DOCUMENTS for one in find_blocks(doc, "yaml", HERE)], ids=str)
def test_documented_settings_load(block: Block, tmp_path: Path) -> None:
    """The first config, and those of single sections, which are merged with it."""
    (first,) = find_blocks(README, "yaml", HERE)
    merged = yaml.safe_dump({**yaml.safe_load(first.text), **yaml.safe_load(block.text)})
    write_credentials(tmp_path)
    (tmp_path / "config.yaml").write_text(re.sub(r"/(etc/consumerd|run/secrets)/", f"{tmp_path}/", merged))

    settings = load_settings(config=tmp_path / "config.yaml", environment={})

    assert settings.group.id == "lake"


def write_credentials(folder: Path) -> None:
    """Write the files that documented settings name: settings with files that are not there may be refused."""
    authority = trustme.CA()
    certificate = authority.issue_cert("client.example")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    certificate.private_key_pem.write_to_path(folder / "client.key")
    (folder / "client.key").chmod(0o600)
    for blob in certificate.cert_chain_pems:
        blob.write_to_path(folder / "client.pem", append=True)
    (folder / "zookeeper").write_text("user:password")
    (folder / "zookeeper").chmod(0o600)
    for name in ("kafka", "lake.keytab"):
        (folder / name).touch(mode=0o600)
    (folder / "token").write_text("token")
    (folder / "token").chmod(0o600)


def test_the_first_config_is_short() -> None:
    """It is meant to be read at a glance."""
    (first,) = find_blocks(README, "yaml", HERE)

    assert len(first.text.splitlines()) <= 11


def test_documented_metrics_exist() -> None:
    """A query on a series that does not exist is empty, and looks like good news."""
    known = {one.name for one in (*list_series(), *list_series_of_jobs())}
    parts = {f"{one}{end}" for one in known for end in ("_sum", "_count", "_bucket")}
    named = {
        (document.name, metric)
        for document in DOCUMENTS
        for metric in re.findall(r"\bconsumerd_[a-z_]+\b", document.read_text())
        if metric not in MODULES and not metric.endswith("_")
    }

    assert sorted(one for one in named if one[1] not in known | parts) == []
    assert len(named) > 30


def test_documented_variables_exist() -> None:
    """Of the environment: settings, and switches that the sources read."""
    places = [TOP / "Makefile", TOP / "Dockerfile", TOP / "setup.py", *(TOP / ".ci").iterdir()]
    folders = ("consumerd", "tests", "deploy", "bench", "docs")
    places += [
        one
        for folder in folders
        for one in (TOP / folder).rglob("*")
        if one.suffix in {".py", ".yml", ".yaml", ".sh", ""}
    ]
    sources = (one.read_bytes() for one in places if one.is_file())
    read = {name.decode() for text in sources for name in re.findall(rb"CONSUMERD_[A-Z_]+", text)}
    settings = {key.upper().replace(".", "__") for key in known_keys()}
    known = read | {f"CONSUMERD_{layer}{key}" for layer in ("", "DEFAULT__") for key in settings}
    named = {one for document in DOCUMENTS for one in re.findall(r"\bCONSUMERD_[A-Z_]+\b", document.read_text())}

    assert sorted(named - known) == []


# -- tables that mirror the code


def find_figures(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield figures with a unit that stand before a date and a commit, with both."""
    for part in re.finditer(r"([^:()]*)\((2\d{3}-\d\d-\d\d), `([0-9a-f]{7,})`", text):
        for figure in re.findall(r"\d+\.\d+ (?:M|%|s|MiB)|\d+ MiB", part[1]):
            yield figure, part[2], part[3]


def test_figures_are_those_of_the_record_of_measurements() -> None:
    """A figure that is copied stays when it is measured again."""
    measured = (DOCS / "performance.md").read_text().splitlines()
    found = [*find_figures(" ".join((DOCS / "sizing.md").read_text().split()))]

    wrong = [
        (figure, date, commit)
        for figure, date, commit in found
        if not any(figure in line and f"{date}, `{commit}`" in line for line in measured)
    ]
    assert wrong == []
    assert [figure for figure, *_ in found] == ["4.43 M", "1.02 M", "4.8 %", "248 MiB", "0.78 s"]


@pytest.mark.parametrize("document", find_documents(), ids=name)
def test_a_date_and_its_commit_stand_in_one_line(document: Path) -> None:
    """Together they name a measurement: a search for one finds the other."""
    assert re.findall(r"2\d{3}-\d\d-\d\d,\n *`[0-9a-f]{7,}`", document.read_text()) == []


def test_troubles_are_all_explained() -> None:
    """Somebody looks one up at night, and finds it, with a cause and something to do."""
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \|$", (DOCS / "troubles.md").read_text(), re.MULTILINE)

    assert sorted(kind for kind, *_ in rows) == sorted(Trouble)
    assert [kind for kind, cause, action in rows if len(cause) < 20 or not action] == []


def test_warnings_of_settings_are_all_explained() -> None:
    """Whoever looks one up finds what it means: the table is in docs/operations.md."""
    sources = "".join(one.read_text() for one in (TOP / "consumerd").rglob("*.py"))
    given = set(re.findall(r"""(?:\bDoubt\(\s*name=|_Found\(\s*)"([a-z-]+)\"""", sources))
    (table,) = re.findall(r"^\| warning \|.*?\n\n", (DOCS / "operations.md").read_text(), re.MULTILINE | re.DOTALL)
    explained = set(re.findall(r"`([a-z]+(?:-[a-z]+)+)`", "".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE))))

    assert explained == given
    assert "limit-cut" in given


STATUS_TABLES: Final = {
    "## The process": status.DaemonStatus,
    "## Partitions": status.PartitionReport,
    "## Sinks": status.SinkStatus,
    "## Coordination": status.CoordinationStatus,
    "## Requests": status.RequestStatus,
    "## Rebalances": status.RebalanceStatus,
    "## Events": events.EventStatus,
    "## Moment": status.Moment,
}


@pytest.mark.parametrize("heading", STATUS_TABLES)
def test_status_fields_are_all_documented(heading: str) -> None:
    """Each with its type; tests/e2e/test_status_page.py holds the page against what a daemon answers."""
    kind = STATUS_TABLES[heading]
    hints = get_type_hints(kind)
    rows = {cells[0].strip("`"): cells[1] for cells in read_table(DOCS / "status-api.md", heading)}

    assert rows.keys() == {one.name for one in fields(kind)}
    assert {key: text for key, text in rows.items() if text != describe(hints[key])} == {}


def describe(hint: Any) -> str:
    """Return a type in the page's words."""
    parts = [one for one in get_args(hint) if one is not type(None)] if get_origin(hint) is not tuple else []
    if type(None) in get_args(hint):
        return f"{describe(parts[0])} or null"
    if get_origin(hint) is tuple:
        return "list of strings" if get_args(hint)[0] is str else "list"
    if get_origin(hint) is not None:
        return "object"
    if is_dataclass(hint):
        return "moment" if hint is status.Moment else "object"
    return {str: "string", bool: "bool", int: "number", float: "number"}[hint]


WIDTH: Final = 120


@pytest.mark.parametrize("document", find_documents(), ids=name)
def test_lines_are_no_longer_than_an_editor_shows(document: Path) -> None:
    """But for tables, and for blocks of code, which have lines of their own. ``python docs/site/wrap.py FILE`` wraps."""
    text = re.sub(
        r"^ *```.*?^ *```$",
        lambda block: "\n" * block[0].count("\n"),
        document.read_text(),
        flags=re.MULTILINE | re.DOTALL,
    )
    lines = enumerate(text.splitlines(), 1)

    assert [number for number, line in lines if len(line) > WIDTH and not line.lstrip().startswith("|")] == []


LONGEST: Final = 120
"""Words of a paragraph, or of an item of a list."""


def find_paragraphs(document: Path) -> Iterator[tuple[int, int]]:
    """Yield the line and the number of words of each paragraph and item of a list, but for tables and blocks of code."""
    text = re.sub(
        r"^ *```.*?^ *```$",
        lambda block: "\n" * block[0].count("\n"),
        document.read_text(),
        flags=re.MULTILINE | re.DOTALL,
    )
    number, words = 0, 0
    for line, content in enumerate(text.splitlines(), 1):
        begins_item = re.match(r" *(?:[-*] |\d+\. )", content) is not None
        if begins_item or not content.strip() or content.lstrip().startswith(("|", "#", "<!--")):
            if words:
                yield number, words
            number, words = line, 0
            if not begins_item:
                continue
        number, words = (number if words else line), words + len(content.split())
    if words:
        yield number, words


@pytest.mark.parametrize("document", find_documents(), ids=name)
def test_paragraphs_are_short(document: Path) -> None:
    """On call at night nobody reads a screen of text for the sentence that helps."""
    assert [line for line, words in find_paragraphs(document) if words > LONGEST] == []


IDIOMS: Final = re.compile(r"\b(?:so many|so long|whoever|whatever|somebody|nobody|anybody)\b", re.IGNORECASE)
PLAIN: Final = [
    README,
    *(
        DOCS / f"{one}.md"
        for one in (
            "aiozk",
            "architecture",
            "classic-group-machine",
            "delivery-guarantees",
            "deployment",
            "embedded",
            "file-formats",
            "glossary",
            "group-machine",
            "http-sink",
            "limits",
            "operations",
            "performance",
            "spark",
            "spark-source",
            "troubles",
            "upgrading",
            "verification",
            "what-may-be-deleted",
        )
    ),
]
"""Pages in plain English; a page that has become so is added here."""


@pytest.mark.parametrize("document", PLAIN, ids=name)
def test_plain_pages_have_no_idioms(document: Path) -> None:
    """Each of these words hides who does what."""
    lines = enumerate(document.read_text().splitlines(), 1)

    assert [(number, line) for number, line in lines if IDIOMS.search(line)] == []


@pytest.mark.parametrize("document", [*PLAIN, DOCS / "metrics.md"], ids=name)
def test_main_pages_open_with_what_the_reader_can_do_afterwards(document: Path) -> None:
    """And for whom the page is."""
    opening = document.read_text().partition("\n## ")[0]

    assert "With this page" in opening.replace("**", "")


def test_every_page_is_in_the_table_of_contents() -> None:
    """A page that nobody links to is read by nobody."""
    listed = {(DOCS / target.partition("#")[0]).resolve() for target in find_links(DOCS / "index.md")}

    assert [
        name(page) for page in sorted(DOCS.glob("*.md")) if page.resolve() not in listed | {DOCS / "index.md"}
    ] == []


def test_readme_first_screen_says_what_it_does_not_do() -> None:
    """Whoever evaluates it must not find out in the evening."""
    screen = README.read_text().partition("## The first two minutes")[0]

    assert [word for word in ("SASL", "KRaft", "0.6 and 0.7", "object stores", "macOS") if word not in screen] == []
