#ifndef QIR_GROUPED_H
#define QIR_GROUPED_H

/*
 * A convolution of narrow groups, each with as many output channels as input channels.
 *
 * A block is some whole groups side by side in one vector of words, each word `lanes` channels:
 * the values whose products one instruction adds. Word i of sums t holds output channel
 * lanes * i + t of the block. In step s, that word takes in word index[s][i] of the input: over
 * the steps, each word of its own group once. So a vector of the input, loaded once and permuted
 * once a step, feeds `lanes` vectors of products, none of them by another group's zeros. Groups of
 * fewer channels than a word share one, and the weights of the others' channels are zero.
 *
 * Kernels read copies: a part of the input with its padding, the channels of one block.
 */

#include "conv/conv.h"
#include "isa.h"

/* Neighbouring pixels of one row of the output. */
struct qir_grouped_run {
  const void *x;           /* the first tap of the first pixel; steps are in bytes: */
  size_t pixel, line, tap; /* to the next pixel of the output, row and column of the window */
  size_t kh, kw, steps, width;
  size_t columns;       /* channels of the block */
  const int32_t *index; /* [steps][words] */
  const void *weights;  /* [kh][kw][steps][lanes][words][lanes] */
  const int32_t *bias;  /* [lanes][words], like multiplier */
  const float *multiplier;
  void *y;
  size_t y_stride; /* elements */
  struct qir_code code;
  int to_float; /* y is f32, and code is not used */
  int converts; /* all floats, as requant.h has it */
};

/* Pixels whose channels are copied to blocks of words * lanes values, the rest of them zero. */
struct qir_grouped_copy {
  const uint8_t *x;
  size_t stride, count, channels; /* a stride of 0 repeats a pixel */
  uint8_t flip;
  void *to;
};

/* How many channels there are from channel c of a layer on. */
static inline size_t qir_grouped_left(size_t channels, size_t c) {
#if defined(QIR_FAULT_TAIL_GROUPED) /* never in a build to use, as in gemm.c */
  if ((channels - c) % 16) return channels - c - 1;
#endif
  return channels - c;
}

typedef void (*qir_grouped_fn)(const struct qir_grouped_run *run);
typedef void (*qir_grouped_copy_fn)(const struct qir_grouped_copy *copy);

#define QIR_GROUPED_KERNEL(name, isa, words, lanes, widened, widest) \
  void name(const struct qir_grouped_run *run);                      \
  void name##_copy(const struct qir_grouped_copy *copy);
#include "kernels.inc"
#undef QIR_GROUPED_KERNEL

struct qir_grouped_kernel {
  const char *name;
  uint32_t isa;
  qir_grouped_fn run;
  qir_grouped_copy_fn copy;
  size_t words, lanes;
  int widened;   /* values and weights are 16-bit, else 8-bit */
  size_t widest; /* channels of a group, at most those of a block */
};

/* Kernels of this build, best first; the last is scalar and always runs. */
extern const struct qir_grouped_kernel qir_grouped_kernels[];
extern const size_t qir_grouped_kernel_count;

/* Whether the kernel that `isa` selects computes groups of this width, and copies are small. */
int qir_grouped_fits(uint32_t isa, const struct qir_conv_shape *shape);

/* Makes a step of a shape that fits; 0 if there is no memory. */
int qir_grouped_make(uint32_t isa, const struct qir_conv_shape *shape,
                     const struct qir_conv_operands *operands, struct qir_step *step);

#endif
