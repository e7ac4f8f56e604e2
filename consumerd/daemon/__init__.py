# SPDX-License-Identifier: Apache-2.0
"""The process: assembly, life cycle, health and HTTP."""
