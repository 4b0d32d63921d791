#include <math.h>

#include "sgemm.h"

enum { NR = 8 };

void qir_sgemm_scalar(const struct qir_sgemm_block *b) {
  for (size_t i = 0; i < b->count; ++i) {
    const float *a = b->rows ? b->rows[i] : b->a + i * b->a_row, *w = b->panel;
    float acc[NR] = {0};
    for (size_t p = 0; p < b->depth; ++p, w += NR)
      for (size_t j = 0; j < NR; ++j)
        acc[j] = fmaf(a[b->rows ? b->offsets[p] : p * b->a_value], w[j], acc[j]);
    float *y = b->y + i * b->y_row;
    for (size_t j = 0; j < b->columns; ++j) {
      float sum = b->first ? acc[j] : y[j] + acc[j];
      if (b->last && b->row_bias) sum += b->row_bias[i];
      if (b->last && b->column_bias) sum += b->column_bias[j];
      if (b->last && b->added) sum += b->added[i * b->y_row + j];
      y[j] = b->last ? qir_bound(sum, &b->bounds) : sum;
    }
  }
}

/* What tap (ky, kx) of output pixel (oy, ox) sees. */
static float seen(const struct qir_conv_shape *s, const float *plane, size_t oy, size_t ox,
                  size_t ky, size_t kx) {
  const size_t y = oy * s->sh + ky * s->dh, x = ox * s->sw + kx * s->dw;
  if (y < s->pt || y - s->pt >= s->h || x < s->pl || x - s->pl >= s->w) return 0;
  return plane[(y - s->pt) * s->w + x - s->pl];
}

void qir_unfold_scalar(const struct qir_unfold *how, float *panel) {
  const struct qir_conv_shape *s = how->s;
  const size_t taps = s->kh * s->kw;
  for (size_t p = how->p; p < how->p + how->depth; ++p, panel += how->width) {
    const float *plane = how->x + p / taps * s->h * s->w;
    for (size_t i = 0, j = how->j; i < how->columns; ++i, ++j)
      panel[i] = seen(s, plane, j / s->ow, j % s->ow, p % taps / s->kw, p % s->kw);
  }
}

void qir_plane_scalar(const struct qir_plane *how, float *y) {
  const struct qir_conv_shape *s = how->s;
  for (size_t oy = 0; oy < s->oh; ++oy)
    for (size_t ox = 0; ox < s->ow; ++ox) {
      float sum = 0;
      for (size_t t = 0; t < s->kh * s->kw; ++t)
        sum = fmaf(how->weight[t], seen(s, how->x, oy, ox, t / s->kw, t % s->kw), sum);
      y[oy * s->ow + ox] = qir_bound(sum + how->bias, &how->bounds);
    }
}

void qir_lines_scalar(const struct qir_lines *how, float *y) {
  const struct qir_conv_shape *s = how->s;
  for (size_t oy = how->first; oy < how->first + how->count; ++oy)
    for (size_t ox = 0; ox < s->ow; ++ox)
      for (size_t c = how->from; c < how->to; ++c) {
        float sum = 0;
        for (size_t t = 0; t < s->kh * s->kw; ++t) {
          const size_t row = oy * s->sh + t / s->kw * s->dh - s->pt; /* wraps below 0 */
          const size_t column = ox * s->sw + t % s->kw * s->dw - s->pl;
          const int inside = row < s->h && column < s->w;
          const float x =
              inside ? how->x[(qir_line_place(how, row) * s->w + column) * s->c + c] : 0;
          sum = fmaf(how->weight[t * how->wide + c], x, sum);
        }
        y[((oy - how->first) * s->ow + ox) * s->c + c] =
            qir_bound(sum + how->bias[c], &how->bounds);
      }
}
