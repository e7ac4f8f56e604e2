// SPDX-License-Identifier: Apache-2.0
/* What Cython's own access to the interpreter's arrays (cpython.array) leaves out. */
#ifndef CONSUMERD_COLUMNS_H
#define CONSUMERD_COLUMNS_H

/* Whether somebody holds a buffer of the array, which must not move then: Cython resizes without asking. */
#define COLUMN_IS_LENT(column) ((column)->ob_exports > 0)

#endif
