# SPDX-License-Identifier: Apache-2.0
"""The daemon's process: assembly, life cycle, health and HTTP.

``runner``           signals, and the end of the process.
``assemble``         makes the sinks, the status and HTTP around a member (``connector.member``).
``routes``           the sink of each topic.
``sinks``            checks of the sinks' destinations at the start.
``status``           the daemon's status as a value; ``describe`` and ``events`` make parts of it.
``http``             HTTP server; ``page`` and ``page_style`` render the status page, ``readings`` the gauges.
``health``           health check of the container image, a program of its own.
``service_manager``  notifications to systemd.
``allocator``        settings of the C library's allocator.
"""
