# SPDX-License-Identifier: Apache-2.0
"""The first two minutes: a cluster, a stream, a group that is disturbed, and an audit that trusts none of them."""
