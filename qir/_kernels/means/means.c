#include "means.h"

#include <string.h>

struct means {
  struct qir_means how;
  qir_epilogue_fn finish;
  size_t arrays; /* bytes of c floats in scratch memory */
};

/* Adds the codes of a window to the sums of its channels. */
static void sum_window(const struct qir_means *m, const uint8_t *x, size_t oy, size_t ox,
                       int32_t *restrict sums) {
  memset(sums, 0, m->c * sizeof *sums);
  for (size_t ky = 0; ky < m->kh; ++ky) {
    const size_t iy = oy * m->sh + ky - m->pt; /* wraps below zero: then not below h */
    if (iy >= m->h) continue;
    for (size_t kx = 0; kx < m->kw; ++kx) {
      const size_t ix = ox * m->sw + kx - m->pl;
      if (ix >= m->w) continue;
      const uint8_t *restrict from = x + (iy * m->w + ix) * m->c;
      if (m->x_flip)
        for (size_t c = 0; c < m->c; ++c) sums[c] += (int8_t)from[c] - m->x_zero;
      else
        for (size_t c = 0; c < m->c; ++c) sums[c] += from[c] - m->x_zero;
    }
  }
}

static void fill(float *to, size_t n, float value) {
  for (size_t i = 0; i < n; ++i) to[i] = value;
}

static void run(const void *params, void *const *buffers, void *scratch, long task) {
  const struct means *v = params;
  const struct qir_means *m = &v->how;
  const size_t pixel = (size_t)task % (m->oh * m->ow), n = (size_t)task / (m->oh * m->ow);
  const uint8_t *x = (const uint8_t *)buffers[m->x] + n * m->h * m->w * m->c;
  uint8_t *y = (uint8_t *)buffers[m->y] + (size_t)task * m->c;
  int32_t *sums = scratch;
  float *reals = (float *)((char *)scratch + v->arrays);
  float *factor = (float *)((char *)reals + v->arrays);
  float *bias = (float *)((char *)factor + v->arrays);
  sum_window(m, x, pixel / m->ow, pixel % m->ow, sums);
  for (size_t c = 0; c < m->c; ++c) reals[c] = (float)sums[c];
  fill(factor, m->c, m->factor[pixel]);
  for (int i = 0; i < 2; ++i) {
    const size_t first = i ? m->body : 0, end = i ? m->c : m->body;
    if (first >= end) continue;
    fill(bias + first, end - first, m->bias[i]);
    struct qir_epilogue e = m->ends[i];
    e.factor = factor;
    e.bias = m->biased[i] ? bias : NULL;
    const struct qir_epilogue_rows rows = {
        .sums = reals + first,
        .stride = m->c,
        .rows = 1,
        .columns = end - first,
        .first = first,
        .y = y + first,
        .y_stride = m->c,
    };
    v->finish(&e, &rows);
  }
}

int qir_means_make(uint32_t isa, const struct qir_means *how, struct qir_step *step) {
  const size_t head = qir_round_up(sizeof(struct means), 64);
  const size_t bytes = how->oh * how->ow * sizeof(float);
  struct means *v = qir_step_alloc(head + bytes);
  if (!v) return 0;
  v->how = *how;
  v->how.factor = (float *)((char *)v + head);
  if (bytes) memcpy((char *)v + head, how->factor, bytes);
  v->finish = qir_epilogue_select(isa);
  v->arrays = qir_round_up(how->c * sizeof(float), 64);
  *step = (struct qir_step){run, v, (long)(how->n * how->oh * how->ow), 4 * v->arrays};
  return 1;
}
