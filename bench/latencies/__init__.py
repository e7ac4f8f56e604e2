# SPDX-License-Identifier: Apache-2.0
"""What :mod:`bench.latency` runs as processes of their own: who produces, and who reads and tells when."""
