# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of the daemon and its parts, side by side with peers in one run.

Compare the ratios, not the rates: the machines are shared, so absolute rates differ from run to run.
"""
