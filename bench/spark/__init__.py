# SPDX-License-Identifier: Apache-2.0
"""The data pipeline on Spark beside Spark's own ways, in one run."""
