# SPDX-License-Identifier: Apache-2.0
"""Assembly, life cycle, health and the HTTP surface: the only place that knows concrete classes."""
