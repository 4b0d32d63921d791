#ifndef QIR_WINDOWS_H
#define QIR_WINDOWS_H

/*
 * A convolution of 3 by 3 taps and three channels, as networks of images begin with.
 *
 * The 27 bytes of a window are gathered next to each other, so that seven words of four values hold
 * them; taken line by line they are nine.
 *
 * Only processors with AVX512-VNNI have such a kernel: elsewhere, and where qir_windows_fits says
 * no, qir_conv_make computes the same bytes.
 */

#include "conv/conv.h"
#include "isa.h"

enum {
  QIR_WINDOW_SIDE = 3,  /* taps of a line, and channels of a tap */
  QIR_WINDOW_LINE = 9,  /* bytes of a line */
  QIR_WINDOW_READ = 12, /* bytes that are read of each line */
  QIR_WINDOW_WORDS = 7, /* of four bytes, in a window */
};

/* Neighbouring windows of one row of the output, at least one, in the lines that it points to. */
struct qir_window_segment {
  const uint8_t *lines[QIR_WINDOW_SIDE];
  size_t count;
};

/* The windows of some segments times one panel, packed as gemm/gemm.h has it. */
struct qir_window_run {
  const struct qir_window_segment *segments;
  size_t count, windows; /* of segments, and of windows in them, at least one */
  size_t step;           /* bytes from a window to the next */
  char *y;
  size_t y_stride; /* in bytes */
  const void *panel;
  const int32_t *bias;
  const float *multiplier; /* each below one in magnitude */
  size_t width, columns;   /* 16 or 32 of the panel, and of these, those that exist */
  uint8_t x_flip;
  struct qir_code code;
};

typedef void (*qir_windows_fn)(const struct qir_window_run *run);

void qir_windows_avx512vnni(const struct qir_window_run *run);

/* Whether there is a kernel for it. */
int qir_windows_fits(uint32_t isa, const struct qir_conv_shape *shape,
                     const struct qir_conv_operands *operands);

/* Makes a step of what fits; 0 if there is no memory. */
int qir_windows_make(uint32_t isa, const struct qir_conv_shape *shape,
                     const struct qir_conv_operands *operands, struct qir_step *step);

#endif
