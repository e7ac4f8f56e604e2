# SPDX-License-Identifier: Apache-2.0
"""The demo: a cluster, a stream, a disturbed group, and an independent audit."""
