# SPDX-License-Identifier: Apache-2.0
"""Speed, side by side with peers in one run. Figures are ratios: machines are shared, absolute numbers are noise."""
