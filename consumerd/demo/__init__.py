# SPDX-License-Identifier: Apache-2.0
"""The command ``demo``: a cluster, a stream of records, a disturbed group, and an audit."""
