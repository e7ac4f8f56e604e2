# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of the data pipeline on Spark, beside plain Spark, in one run."""
