# SPDX-License-Identifier: Apache-2.0
"""Delivery: fetched batches to sinks, and acknowledgements to commits; one pipeline per partition."""
