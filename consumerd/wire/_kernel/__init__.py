# SPDX-License-Identifier: Apache-2.0
"""The native kernel: Cython modules, compiled where there was a compiler when consumerd was installed.

Nobody imports them but :mod:`consumerd.wire.kernel`, which says what they promise.
"""
