# SPDX-License-Identifier: Apache-2.0
"""``consumerd migrate``: moves the positions of groups to another cluster, which a mirror writes."""
