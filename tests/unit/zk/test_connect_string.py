# SPDX-License-Identifier: Apache-2.0
"""Connect strings, as they stand in the settings of Java clients."""

from __future__ import annotations

import pytest

from consumerd.errors import ConfigError
from consumerd.zk.connect_string import ConnectString, Server, parse_connect_string


@pytest.mark.parametrize(
    ("text", "servers", "chroot"),
    [
        ("zk", [("zk", 2181)], ""),
        ("zk1:2181,zk2:2182/kafka", [("zk1", 2181), ("zk2", 2182)], "/kafka"),
        (" zk1:2181 , zk2.example.com ", [("zk1", 2181), ("zk2.example.com", 2181)], ""),
        ("10.0.0.1:1,", [("10.0.0.1", 1)], ""),
        ("[::1]:2182,[fe80::1%eth0]/a/b", [("::1", 2182), ("fe80::1%eth0", 2181)], "/a/b"),
        ("zk:2181/", [("zk", 2181)], ""),
        ("zk:2181/kafka/", [("zk", 2181)], "/kafka"),
        ("zk:2181/kafka:1", [("zk", 2181)], "/kafka:1"),
    ],
)
def test_real_forms_are_read(text: str, servers: list[tuple[str, int]], chroot: str) -> None:
    """The same string is in every client's configuration already."""
    assert ConnectString(tuple(Server(*server) for server in servers), chroot) == parse_connect_string(text)


def test_it_reads_back_what_it_prints() -> None:
    """Log lines and error messages show an address that can be pasted."""
    text = "zk1:2181,[::1]:2182/kafka"

    assert text == str(parse_connect_string(text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no host"),
        ("/kafka", "no host"),
        ("zk:port", "expected host:port, got 'zk:port'"),
        ("zk:0", "0 is no port"),
        ("zk:70000", "70000 is no port"),
        ("::1:2181", "brackets"),
        ("zk:2181//kafka", "no path"),
        ("zk:2181/a/../b", "no path"),
        ("zookeeper://zk:2181/kafka", "zookeeper:"),
        ("a b:1", "a b:1"),
        ("zk1:2181 zk2:2181", "separate servers by commas"),
        ("zk1:2181;zk2:2181/kafka", "separate servers by commas"),
        ("zk1/kafka:2181", "the port stands before the chroot: write zk1:2181/kafka$"),
        ("zk1:2181,zk2/kafka/a:2182/", "write zk1:2181,zk2:2182/kafka/a$"),
        ("[::1]/kafka:2181", r"write \[::1\]:2181/kafka$"),
    ],
)
def test_mistakes_are_named(text: str, message: str) -> None:
    """A person corrects the settings by the message alone."""
    with pytest.raises(ConfigError, match=message):
        parse_connect_string(text)
