#ifndef QIR_CONV_ROWS_H
#define QIR_CONV_ROWS_H

/*
 * The rows of the left operand when a convolution is taken as a product: row i is the window of
 * output pixel i. Rows are pointers into x wherever the kernel can read it in place:
 *
 *   pixels   one tap and no padding: row i is input pixel i
 *   taps     a pointer a tap, to the channels of a pixel
 *   lines    a pointer a line of the window, whose taps are neighbours in memory; up to three
 *            bytes behind the line are read too, and their weights are zero
 *   copies   the window is copied, as 16-bit numbers if the kernel wants those
 *
 * What lies outside of x is read from a line of padding. Pieces that are partly outside, and
 * those that would be read beyond the end of x, are copied.
 */

#include "conv.h"

enum qir_conv_way { QIR_PIXELS, QIR_TAPS, QIR_LINES, QIR_COPIES };

struct qir_conv_rows {
  struct qir_conv_shape s;
  enum qir_conv_way way;
  size_t cg;          /* channels of a group */
  size_t joined;      /* taps that one pointer leads to */
  size_t pieces;      /* pointers of a row */
  size_t depth;       /* values that each leads to, a multiple of kr */
  size_t size;        /* bytes of a value: 1 or 2 */
  uint8_t flip;       /* of 16-bit copies */
  const uint8_t *pad; /* qir_conv_rows_pad bytes of the zero point */
};

/* Chooses the way; `pad` and `flip` are left to the caller. */
struct qir_conv_rows qir_conv_rows_make(const struct qir_conv_shape *shape, size_t kr, int widened);

size_t qir_conv_rows_pad(const struct qir_conv_rows *r);

/* Bytes that `count` rows take in scratch memory: pointers, then copies. */
size_t qir_conv_rows_scratch(const struct qir_conv_rows *r, size_t count);

/*
 * Points rows[p * count + i] to piece p of output pixel first + i. `x` is the first channel of the
 * group in the first pixel, and rows is what qir_conv_rows_scratch told.
 */
void qir_conv_rows_fill(const struct qir_conv_rows *r, const uint8_t *x, size_t first, size_t count,
                        const void **rows);

#endif
