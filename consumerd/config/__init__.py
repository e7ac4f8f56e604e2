# SPDX-License-Identifier: Apache-2.0
"""Settings: what they are, where they come from, and what is wrong with them."""
