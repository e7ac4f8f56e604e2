# SPDX-License-Identifier: Apache-2.0
"""The group coordinator of the embedded broker: groups, positions, and their requests."""
