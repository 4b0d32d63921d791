#include "depthwise.h"

#include <string.h>

#define QIR_DEPTHWISE_KERNEL(name, isa, block, vectors, lanes, widened) \
  {#name, isa, name, block, vectors, lanes, widened},
const struct qir_depthwise_kernel qir_depthwise_kernels[] = {
#include "kernels.inc"
};
#undef QIR_DEPTHWISE_KERNEL
const size_t qir_depthwise_kernel_count =
    sizeof qir_depthwise_kernels / sizeof *qir_depthwise_kernels;

struct depthwise {
  const struct qir_depthwise_kernel *kernel;
  struct qir_conv_shape s;
  struct qir_depthwise_row row; /* what all rows have in common */
  int x, y;
  size_t column; /* taps of a group that is a column of the window, 0 if groups run on */
  size_t rows;   /* rows of the output in a task */
  const uint8_t *pad; /* c bytes of the zero point */
};

/*
 * Bytes are interleaved in 128-bit lanes, so sums come out in an order of their own: with v
 * vectors, vector i has in its lane l the channels 4 v l + 4 i onwards.
 */
static size_t place(const struct qir_depthwise_kernel *kernel, size_t c) {
  const size_t v = kernel->vectors;
  return c / 4 % v * (kernel->block / v) + c / (4 * v) * 4 + c % 4;
}

/* The place of tap (ky, kx) in the list of taps. */
static size_t tap_at(const struct depthwise *v, size_t ky, size_t kx) {
  return v->column ? kx * v->kernel->lanes + ky : ky * v->s.kw + kx;
}

static void pack(const struct depthwise *v, const struct qir_conv_operands *o, char *weights,
                 int32_t *bias, float *multiplier) {
  const struct qir_depthwise_kernel *k = v->kernel;
  const size_t taps = v->s.kh * v->s.kw;
  for (size_t c = 0; c < v->s.c; ++c) {
    const size_t block = c / k->block, to = place(k, c % k->block);
    uint32_t sum = 0;
    for (size_t ky = 0; ky < v->s.kh; ++ky)
      for (size_t kx = 0; kx < v->s.kw; ++kx) {
        const int8_t value = o->weight[c * taps + ky * v->s.kw + kx];
        const size_t tap = tap_at(v, ky, kx), group = block * v->row.groups + tap / k->lanes;
        const size_t at = (group * k->block + to) * k->lanes + tap % k->lanes;
        if (k->widened)
          ((int16_t *)weights)[at] = value;
        else
          ((int8_t *)weights)[at] = value;
        sum += (uint32_t)(int32_t)value;
      }
    const uint32_t zero = (uint32_t)(o->x_zero + o->x_flip);
    bias[block * k->block + to] = (int32_t)((o->bias ? (uint32_t)o->bias[c] : 0) - zero * sum);
    multiplier[block * k->block + to] = o->multiplier[o->multiplier_count == 1 ? 0 : c];
  }
}

/* Input bytes of every tap of the pixels of one output row. */
static void point_taps(const struct depthwise *v, const uint8_t *x, size_t n, size_t oy,
                       const void **taps) {
  const struct qir_conv_shape *s = &v->s;
  const size_t stride = v->row.groups * v->kernel->lanes;
  for (size_t ky = 0; ky < s->kh; ++ky) {
    const size_t iy = oy * s->sh + ky * s->dh - s->pt; /* wraps below zero: then not below h */
    const uint8_t *line = iy < s->h ? x + (n * s->h + iy) * s->w * s->c : NULL;
    for (size_t kx = 0; kx < s->kw; ++kx) {
      const void **to = taps + tap_at(v, ky, kx);
      size_t ix = kx * s->dw - s->pl;
      for (size_t ox = 0; ox < s->ow; ++ox, ix += s->sw, to += stride)
        *to = line && ix < s->w ? line + ix * s->c : v->pad;
    }
  }
}

static void run(const void *params, void *const *buffers, void *scratch, long task) {
  const struct depthwise *v = params;
  const size_t begin = (size_t)task * v->rows, all = v->s.n * v->s.oh;
  const size_t end = begin + v->rows < all ? begin + v->rows : all;
  const void **taps = scratch;
  const size_t count = v->s.ow * v->row.groups * v->kernel->lanes;
  for (size_t i = 0; i < count; ++i) taps[i] = v->pad; /* also those of weight zero */
  struct qir_depthwise_row row = v->row;
  row.taps = taps;
  for (size_t i = begin; i < end; ++i) {
    point_taps(v, buffers[v->x], i / v->s.oh, i % v->s.oh, taps);
    row.y = (uint8_t *)buffers[v->y] + i * v->s.ow * v->s.c;
    v->kernel->run(&row);
  }
}

int qir_depthwise_make(uint32_t isa, const struct qir_conv_shape *shape,
                       const struct qir_conv_operands *o, struct qir_step *step) {
  enum { WORK = 128 * 1024 };
  const struct qir_depthwise_kernel *k = QIR_SELECT(qir_depthwise_kernels, isa);
  const size_t channels = qir_round_up(shape->c, k->block), taps = shape->kh * shape->kw;
  const int columns = k->lanes == 4 && (shape->kh == 3 || shape->kh == 4);
  const size_t groups = columns ? shape->kw : (taps + k->lanes - 1) / k->lanes;
  const size_t head = qir_round_up(sizeof(struct depthwise), 64);
  const size_t weights =
      qir_round_up(channels * groups * k->lanes * (k->widened ? 2 : 1), 64);
  const size_t vector = qir_round_up(channels * 4, 64), pad = qir_round_up(shape->c, 64);
  struct depthwise *v = qir_step_alloc(head + weights + 2 * vector + pad);
  if (!v) return 0;
  char *memory = (char *)v + head;
  v->kernel = k;
  v->s = *shape;
  v->x = o->x;
  v->y = o->y;
  v->column = columns ? shape->kh : 0;
  v->pad = memset(memory + weights + 2 * vector, (uint8_t)o->x_zero, pad);
  v->row = (struct qir_depthwise_row){
      .width = shape->ow,
      .channels = shape->c,
      .groups = groups,
      .slides = columns && shape->kw == 3 && shape->sw == 1 && shape->dw == 1,
      .weights = memory,
      .bias = (int32_t *)(memory + weights),
      .multiplier = (float *)(memory + weights + vector),
      .x_flip = o->x_flip,
      .code = o->code,
  };
  const size_t work = shape->ow * taps * shape->c;
  v->rows = work < WORK ? WORK / (work ? work : 1) : 1;
  pack(v, o, memory, (int32_t *)(memory + weights), (float *)(memory + weights + vector));
  step->run = run;
  step->params = v;
  step->tasks = (long)((shape->n * shape->oh + v->rows - 1) / v->rows);
  step->scratch = qir_round_up(shape->ow * groups * k->lanes * sizeof(void *), 64);
  return 1;
}
