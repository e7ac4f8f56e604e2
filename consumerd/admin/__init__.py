# SPDX-License-Identifier: Apache-2.0
"""The operator's tools: groups and topics shown, positions moved and exported, quarantined units read, the doctor."""
