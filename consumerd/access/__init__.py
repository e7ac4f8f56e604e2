# SPDX-License-Identifier: Apache-2.0
"""Way to a cluster: its address, and the one function that opens it."""
