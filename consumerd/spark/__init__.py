"""The data pipeline on Spark: a data source for brokers, and the jobs that take over what daemons have landed.

Of this package one imports as much as pyspark needs: without pyspark installed the rest of consumerd works, and so do the
modules here that plan and name things (``landing``, ``datasource.options``, the log of ``table``, ...), which never import it.
Nothing below the layer imports this package.
"""

from __future__ import annotations
