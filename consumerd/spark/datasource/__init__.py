# SPDX-License-Identifier: Apache-2.0
"""The Data Source ``consumerd``: Kafka clusters from 0.8 on as Spark tables and streams.

Spark creates ``source`` from the format's name. Reading and writing are split between Spark's driver and executors:

=================  ======================  ===========================================================================
runs on            module                  task
=================  ======================  ===========================================================================
driver             ``source``              readers and writers, made from options
driver             ``batch``               plans a batch; ``pruning`` takes a query's filters into account
driver             ``stream``              plans the triggers of a stream; ``triggers`` decides their ends
driver             ``lookup``              asks the cluster for partitions, log ranges, times, groups' positions
executor           ``reading``             reads one range of offsets into rows; ``schema`` has their columns
driver, executor   ``writer``              batch writer; ``stream_writer`` is that of streams
executor           ``sending``             writes a task's rows; ``outgoing`` makes records of them
both               ``loop_thread``         an event loop in a thread
executor           ``worker_logs``         logging of Spark's Python processes
executor           ``worker_memory``       garbage collection of Spark's Python processes
any (pure)         ``options``             options of readers; ``write_options`` those of writers
any (pure)         ``offsets``             offsets by partition as JSON; ``planning`` makes ranges and divides them
=================  ======================  ===========================================================================
"""
