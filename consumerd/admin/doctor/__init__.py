# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a group, and what to do about it: facts are read once, checks over them are pure."""
