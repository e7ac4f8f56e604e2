# SPDX-License-Identifier: Apache-2.0
"""The command line. Commands parse options, call the other packages, and print the result."""
