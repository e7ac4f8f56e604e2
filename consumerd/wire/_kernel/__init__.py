# SPDX-License-Identifier: Apache-2.0
"""Compiled modules of the native kernel; see ``consumerd.wire.kernel``.

Import them only through ``consumerd.wire.kernel``: they may be missing, or disabled.
"""
