# SPDX-License-Identifier: Apache-2.0
"""The Data Source ``consumerd``: Kafka clusters from 0.8 on as Spark tables and streams.

``options`` says what can be asked for, ``offsets`` and ``planning`` which offsets that means and how they are divided
(pure), ``lookup`` asks a cluster on the driver, ``reading`` reads one range of offsets on an executor, ``source`` is
what Spark sees.
"""
