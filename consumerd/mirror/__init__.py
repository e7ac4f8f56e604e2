# SPDX-License-Identifier: Apache-2.0
"""Mirror of topics in another cluster: the map between the offsets of both."""
