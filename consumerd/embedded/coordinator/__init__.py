# SPDX-License-Identifier: Apache-2.0
"""The embedded broker's group coordinator: groups, committed positions, and the requests about them."""
