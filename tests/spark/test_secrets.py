# SPDX-License-Identifier: Apache-2.0
"""Spark's plans have the names of files with secrets, not their content, and jobs read with what is in them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import confluent_kafka
import pytest
from pyspark.sql import SparkSession

from consumerd.embedded.acls import AclFile
from consumerd.embedded.sasl import make_users
from tests.spark.test_batch_source import read
from tests.support.embedded import EmbeddedThread
from tests.support.zookeeper import run_server

PASSWORD: Final = "S3cret-of-lake"


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[EmbeddedThread]:
    """A broker with one user, who may do everything."""
    rules = tmp_path / "acls"
    rules.write_text("allow User:lake All *\n")
    with (
        run_server() as zookeeper,
        EmbeddedThread(
            tmp_path / "broker",
            f"{zookeeper.connect_string}/secured",
            users=make_users({"lake": PASSWORD}),
            acls=AclFile(rules).allows,
        ) as broker,
    ):
        yield broker


def test_plans_settings_and_errors_have_no_password(
    spark: SparkSession, secured: EmbeddedThread, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Rows come all the same: each executor reads the file itself."""
    secret = tmp_path / "password"
    secret.touch(mode=0o600)
    secret.write_text(PASSWORD)
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": secured.bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": "lake",
            "sasl.password": PASSWORD,
        }
    )
    producer.produce("orders", b"value")
    assert producer.flush(30) == 0
    login: dict[str, Any] = {
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "lake",
        "sasl.password.file": str(secret),
    }
    frame = read(spark, secured, "orders", **login)
    assert [bytearray(b"value")] == [row.value for row in frame.collect()]
    plan = frame._jdf.queryExecution()
    shown = [plan.toString(), plan.optimizedPlan().toString(), plan.executedPlan().toString(), repr(frame)]
    shown += [f"{key}={value}" for key, value in spark.sparkContext.getConf().getAll()]
    frame.explain(extended=True)
    secret.write_text(f"wrong-{PASSWORD}")
    with pytest.raises(Exception, match="SCRAM-SHA-256") as refused:
        read(spark, secured, "orders", **login).collect()
    captured = capfd.readouterr()
    shown += [str(refused.value), captured.out, captured.err]

    assert [text for text in shown if PASSWORD in text] == []
