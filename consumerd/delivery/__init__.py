# SPDX-License-Identifier: Apache-2.0
"""From fetched batches to sinks, and from the sinks' acknowledgements to commits: one pipeline a partition."""
