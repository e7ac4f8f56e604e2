# SPDX-License-Identifier: Apache-2.0
"""What ``spark-submit`` runs: ``consumerd-spark``, with the job and its options as arguments.

Executors need consumerd and pyarrow, too: the image (spark-submit.sh kubernetes) or an archive of an environment (yarn, standalone).
"""

import sys

from consumerd.spark.__main__ import main

sys.exit(main())
