# SPDX-License-Identifier: Apache-2.0
"""Settings: models, sources, validation and warnings."""
