# SPDX-License-Identifier: Apache-2.0
"""Which nodes of a group are protected: those that Java members protect, as dumped from real groups."""

from __future__ import annotations

import pytest

from consumerd.zk.node_acl import AclProfile, choose_acl

OPEN = ["world:anyone:cdrwa"]
OWNED = ["auth::cdrwa", "world:anyone:r"]
PRIVATE = ["auth::cdrwa"]


@pytest.mark.parametrize(
    ("path", "java", "private"),
    [
        ("/", OPEN, OPEN),
        ("/consumers", OPEN, OPEN),
        ("/brokers/topics/t", OPEN, OPEN),
        ("/consumers/g", OPEN, PRIVATE),
        ("/consumers/g/ids", OPEN, PRIVATE),
        ("/consumers/g/ids/g_one", OPEN, PRIVATE),
        ("/consumers/owners/ids", OPEN, PRIVATE),
        ("/consumers/g/owners", OWNED, PRIVATE),
        ("/consumers/g/owners/t/0", OWNED, PRIVATE),
        ("/consumers/g/offsets", OWNED, PRIVATE),
        ("/consumers/g/offsets/t/0", OWNED, PRIVATE),
        ("/consumers/g/consumerd/requests/t/0", OWNED, PRIVATE),
    ],
)
def test_each_node_has_the_acl_of_its_place(path: str, java: list[str], private: list[str]) -> None:
    """A directory that is closed to a member of the group starves it; one that is open is anybody's."""
    assert list(map(str, choose_acl(AclProfile.OPEN, path))) == OPEN
    assert list(map(str, choose_acl(AclProfile.JAVA, path))) == java
    assert list(map(str, choose_acl(AclProfile.PRIVATE, path))) == private
