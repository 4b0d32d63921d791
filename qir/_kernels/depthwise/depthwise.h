#ifndef QIR_DEPTHWISE_H
#define QIR_DEPTHWISE_H

/*
 * A convolution in which each channel sees itself only:
 *
 * y[n, oy, ox, c] = requantize(bias[c] + sum over ky, kx of
 *     (x[n, oy * sh - pt + ky * dh, ox * sw - pl + kx * dw, c] - x_zero) * w[c, ky, kx])
 *
 * Taps come in groups of `lanes`, whose products one instruction adds; a group that is not full
 * has taps of weight zero. Weights are packed by blocks of channels, then groups; in a group come
 * the channels in an order of the kernel, `lanes` weights each; the second half of a last block
 * that is at most half full repeats the first.
 */

#include "conv/conv.h"
#include "isa.h"

/* Neighbouring pixels of the output, whose windows lie in x or move along padding with it. */
struct qir_depthwise_run {
  const uint8_t *const *taps; /* of the first pixel, groups * lanes; each moves by `step` bytes */
  size_t step, width, channels, groups;
  /* Groups are the columns, each padded to whole groups, of a window of 3 or 5 by as many. Else 0.
   */
  size_t size;
  /*
   * Such a window moves by `slides`, 1 or 2, over `before` columns of padding, `line` ones of x and
   * padding again; the first `size` taps are those of the first column that is in x. Else 0.
   */
  size_t slides, before, line;
  uint8_t pad;
  const uint8_t *blank; /* a column of padding */
  int converts;         /* all floats, as requant.h has it */
  const void *weights;
  const int32_t *bias; /* in packed order, like multiplier */
  const float *multiplier;
  void *y;
  uint8_t x_flip;
  struct qir_code code;
  int to_float; /* y is f32, and code is not used */
  int pairs;    /* taps 2 i and 2 i + 1 are added in 16 bits that saturate */
};

/* How many channels there are from channel c on. */
static inline size_t qir_depthwise_left(const struct qir_depthwise_run *run, size_t c) {
#if defined(QIR_FAULT_TAIL_DEPTHWISE) /* never in a build to use, as in gemm.c */
  if ((run->channels - c) % 16) return run->channels - c - 1;
#endif
  return run->channels - c;
}

typedef void (*qir_depthwise_fn)(const struct qir_depthwise_run *run);

#define QIR_DEPTHWISE_KERNEL(name, isa, block, vectors, lanes, widened, slides) \
  void name(const struct qir_depthwise_run *run);
#include "kernels.inc"
#undef QIR_DEPTHWISE_KERNEL

struct qir_depthwise_kernel {
  const char *name;
  uint32_t isa;
  qir_depthwise_fn run;
  size_t block;   /* channels */
  size_t vectors; /* of sums, in a block */
  size_t lanes;   /* taps of a group */
  int widened;    /* weights are 16-bit, else 8-bit */
  size_t slides;  /* side of the largest square window that slides over padding beside a line */
};

/* Kernels of this build, best first; the last is scalar and always runs. */
extern const struct qir_depthwise_kernel qir_depthwise_kernels[];
extern const size_t qir_depthwise_kernel_count;

/* Makes a step; groups == c == oc. 0 if there is no memory. */
int qir_depthwise_make(uint32_t isa, const struct qir_conv_shape *shape,
                       const struct qir_conv_operands *operands, struct qir_step *step);
/* As qir_dynamic_conv_make. */
int qir_dynamic_depthwise_make(uint32_t isa, const struct qir_conv_shape *shape,
                               const struct qir_conv_operands *operands,
                               const struct qir_dynamic *dynamic, struct qir_step *step);

#endif
