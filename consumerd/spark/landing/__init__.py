# SPDX-License-Identifier: Apache-2.0
"""What daemons have landed, as values: roots, chains, files, coverage, and what of it is to be taken over. No Spark in here.

In the order in which a job uses them: ``scan`` (names), ``footers`` (what files say of themselves), ``plan`` (who gives
which record). They speak of ``values``, ``ranges``, ``coverage`` and ``findings``.
"""
