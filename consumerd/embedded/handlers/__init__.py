# SPDX-License-Identifier: Apache-2.0
"""What answers each request: one module a family, no sockets."""
