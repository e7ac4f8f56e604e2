# SPDX-License-Identifier: Apache-2.0
"""Where records go: the port, its registry, and the sinks that come with consumerd."""
