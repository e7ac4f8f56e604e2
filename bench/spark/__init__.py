"""The data pipeline on Spark beside Spark's own ways, in one run."""
