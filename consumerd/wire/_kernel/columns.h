// SPDX-License-Identifier: Apache-2.0
/* Access to array.array beyond that of Cython's cpython.array. */
#ifndef CONSUMERD_COLUMNS_H
#define CONSUMERD_COLUMNS_H

/* True while a buffer of the array is exported. It must not be resized then, and Cython does not check that. */
#define COLUMN_IS_LENT(column) ((column)->ob_exports > 0)

#endif
