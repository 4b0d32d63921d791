#include "windows.h"

#include <math.h>
#include <string.h>

#include "gemm/gemm.h"

struct windows {
  qir_windows_fn kernel;
  struct qir_conv_shape s;
  struct qir_window_run run;    /* what all panels have in common */
  struct qir_gemm_kernel panel; /* with panels of two vectors */
  struct qir_gemm_packed packed;
  int x, y;
  const uint8_t *pad;     /* a line of padding, and what is read after it */
  size_t rows;            /* of the output, in a task */
  size_t inside, outside; /* first window of a row that has no padding beside, and end */
  size_t segments;        /* of a task, at most */
};

enum { SIDE = QIR_WINDOW_SIDE, READ = QIR_WINDOW_READ };

static qir_windows_fn kernel_of(uint32_t isa) {
#if defined(QIR_X86)
  if (isa & QIR_ISA_AVX512VNNI) return qir_windows_avx512vnni;
#endif
  (void)isa;
  return NULL;
}

/* Makes a segment of one window of which part is padding, or that ends where x does. */
static void copy(const struct windows *v, const uint8_t *const x[], size_t ox, uint8_t *to,
                 struct qir_window_segment *segment) {
  for (size_t k = 0; k < SIDE; ++k, to += READ) {
    memcpy(to, v->pad, READ);
    for (size_t kx = 0; x[k] && kx < SIDE; ++kx) {
      const size_t ix = ox * v->s.sw + kx - v->s.pl; /* wraps below zero: then not below w */
      if (ix < v->s.w) memcpy(to + kx * SIDE, x[k] + ix * SIDE, SIDE);
    }
    segment->lines[k] = to;
  }
  segment->count = 1;
}

/* Makes the segments of a row of the output; returns how many. */
static size_t divide(const struct windows *v, const uint8_t *x, size_t row, uint8_t **copies,
                     struct qir_window_segment *segments) {
  const struct qir_conv_shape *s = &v->s;
  const size_t n = row / s->oh, oy = row % s->oh, line = s->w * SIDE;
  const uint8_t *const end = x + s->n * s->h * line, *lines[SIDE];
  size_t outside = v->outside, count = 0;
  for (size_t k = 0; k < SIDE; ++k) {
    const size_t iy = oy * s->sh + k - s->pt;
    lines[k] = iy < s->h ? x + (n * s->h + iy) * line : NULL;
    if (!lines[k]) continue;
    const size_t left = (size_t)(end - lines[k]); /* no load goes beyond the end of x */
    while (outside > v->inside && ((outside - 1) * s->sw - s->pl) * SIDE + READ > left) --outside;
  }
  for (size_t ox = 0; ox < s->ow;) {
    struct qir_window_segment *segment = &segments[count++];
    if (ox < v->inside || ox >= outside) {
      copy(v, lines, ox++, *copies, segment);
      *copies += SIDE * READ;
      continue;
    }
    segment->count = outside - ox;
    for (size_t k = 0; k < SIDE; ++k)
      segment->lines[k] = lines[k] ? lines[k] + (ox * s->sw - s->pl) * SIDE : v->pad;
    ox = outside;
  }
  return count;
}

static void run(const void *params, void *const *buffers, void *scratch, long task) {
  const struct windows *v = params;
  const struct qir_conv_shape *s = &v->s;
  const size_t begin = (size_t)task * v->rows, all = s->n * s->oh;
  const size_t end = begin + v->rows < all ? begin + v->rows : all;
  struct qir_window_segment *segments = scratch;
  uint8_t *copies = (uint8_t *)(segments + v->segments);
  struct qir_window_run run = v->run;
  run.segments = segments;
  run.windows = (end - begin) * s->ow;
  for (size_t i = begin; i < end; ++i)
    run.count += divide(v, buffers[v->x], i, &copies, segments + run.count);
  const size_t columns = v->panel.nr * v->panel.nv;
  for (size_t j = 0; j < s->oc; j += columns) {
    struct qir_gemm_block block;
    qir_gemm_point(&v->panel, &v->packed, j, &block);
    run.y = (char *)buffers[v->y] + begin * s->ow * s->oc + j;
    run.panel = block.panel;
    run.bias = block.bias;
    run.multiplier = block.multiplier;
    run.width = block.width;
    run.columns = block.columns;
    v->kernel(&run);
  }
}

int qir_windows_fits(uint32_t isa, const struct qir_conv_shape *s,
                     const struct qir_conv_operands *o) {
  if (!kernel_of(isa) || o->to_float || o->epilogue || o->offset) return 0;
  for (size_t j = 0; j < o->multiplier_count; ++j)
    if (!(fabsf(o->multiplier[j]) < 1)) return 0;
  return s->groups == 1 && s->c == SIDE && s->kh == SIDE && s->kw == SIDE && s->dh == 1 &&
         s->dw == 1 && s->ow;
}

/* Finds the windows of a row that have no padding beside, and how many segments one may have. */
static size_t find_inside(struct windows *v) {
  const struct qir_conv_shape *s = &v->s;
  v->inside = (s->pl + s->sw - 1) / s->sw;
  v->outside = s->w + s->pl >= SIDE ? (s->w + s->pl - SIDE) / s->sw + 1 : 0;
  if (v->outside > s->ow) v->outside = s->ow;
  if (v->inside > v->outside) v->inside = v->outside;
  const size_t copied = s->ow - (v->outside - v->inside) + READ / SIDE; /* and those at the end */
  return copied < s->ow ? copied + 1 : s->ow;
}

int qir_windows_make(uint32_t isa, const struct qir_conv_shape *s,
                     const struct qir_conv_operands *o, struct qir_step *step) {
  enum {
    WORK = 1024 * 1024 /* multiply-adds of a task, at least */,
    TASKS = 8,
    TAPS = SIDE * SIDE
  };
  struct qir_gemm_kernel panel = *QIR_SELECT(qir_gemm_kernels, isa);
  panel.nv = 2; /* whose weights stay in registers */
  const size_t head = qir_round_up(sizeof(struct windows), 64);
  const size_t pad = qir_round_up(s->w * SIDE + READ, 64);
  const size_t bytes = qir_gemm_packed_size(&panel, s->oc, QIR_WINDOW_WORDS * 4);
  struct windows *v = qir_step_alloc(head + pad + bytes);
  if (!v) return 0;
  v->s = *s;
  v->kernel = kernel_of(isa);
  v->panel = panel;
  v->x = o->x;
  v->y = o->y;
  v->pad = memset((char *)v + head, (uint8_t)o->x_zero, pad);
  v->run = (struct qir_window_run){
      .step = s->sw * SIDE,
      .y_stride = s->oc,
      .x_flip = o->x_flip,
      .code = o->code,
  };
  const struct qir_gemm_weights weights = {
      .data = o->weight,
      .n = s->oc,
      .taps = TAPS,
      .joined = TAPS,
      .depth = SIDE,
      .column = SIDE * TAPS,
      .tap = 1,
      .value = TAPS,
  };
  qir_gemm_pack(&panel, &weights, o->bias, o->x_zero + o->x_flip, o->multiplier,
                o->multiplier_count, 0, (char *)v + head + pad, &v->packed);
  const size_t rows = s->n * s->oh, work = s->ow * s->oc * SIDE * TAPS;
  v->rows = work < WORK ? WORK / (work ? work : 1) : 1;
  if (v->rows * TASKS < rows) v->rows = (rows + TASKS - 1) / TASKS;
  v->segments = find_inside(v) * v->rows;
  step->run = run;
  step->params = v;
  step->tasks = (long)((rows + v->rows - 1) / v->rows);
  step->scratch = qir_round_up(v->segments * (sizeof(struct qir_window_segment) + SIDE * READ), 64);
  return 1;
}
