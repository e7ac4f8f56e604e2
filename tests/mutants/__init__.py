# SPDX-License-Identifier: Apache-2.0
"""Each promise, broken on purpose: mutations of the code, each with the test that must fail."""
