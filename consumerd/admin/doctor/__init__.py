# SPDX-License-Identifier: Apache-2.0
"""``consumerd doctor``: reads the state of a consumer group once, then checks it for problems."""
