# SPDX-License-Identifier: Apache-2.0
"""Readers that are compared. Each runs as a process of its own.

A reader prints, or lets be observed, how many records it has read at which time.
"""
