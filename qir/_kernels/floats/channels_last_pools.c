#include <math.h>

#include "channels_last.h"

/* ---- means ---- */

struct means {
  const struct qir_unary_kernel *kernel;
  size_t pixels, c, groups;
  int x, y;
};

static void run_means(const void *params, void *const *buffers, void *scratch, long task) {
  (void)scratch;
  const struct means *v = params;
  const size_t image = (size_t)task / v->groups;
  const size_t first = (size_t)task % v->groups * QIR_MEANS, left = v->c - first;
  v->kernel->means((const float *)buffers[v->x] + image * v->pixels * v->c + first, v->pixels, v->c,
                   left < QIR_MEANS ? left : QIR_MEANS,
                   (float *)buffers[v->y] + image * v->c + first);
}

int qir_last_mean_make(uint32_t isa, size_t n, size_t pixels, size_t c, int x, int y,
                       struct qir_step *step) {
  struct means *v = qir_step_alloc(sizeof *v);
  if (!v) return 0;
  const size_t groups = (c + QIR_MEANS - 1) / QIR_MEANS;
  *v = (struct means){QIR_SELECT(qir_unary_kernels, isa), pixels, c, groups, x, y};
  *step = (struct qir_step){run_means, v, (long)(n * groups), 0};
  return 1;
}

/* ---- windows ---- */

struct pool {
  const struct qir_unary_kernel *kernel;
  struct qir_last_pool how;
};

/* Elements from low to high that a window along one axis has a share of. */
static double share(size_t at, size_t stride, size_t kernel, size_t low, size_t high) {
  const size_t start = at * stride, end = start + kernel;
  const size_t first = start > low ? start : low, last = end < high ? end : high;
  return last > first ? (double)(last - first) : 0;
}

/* What the taps of one output pixel see, in order. */
static void take(const struct pool *v, const float *x, size_t oy, size_t ox, float *most,
                 double *sums) {
  const struct qir_float_window *s = &v->how.s;
  const size_t c = v->how.channels;
  for (size_t ky = 0; ky < s->kh; ++ky) {
    const size_t line = oy * s->sh + ky * s->dh;
    if (line < s->pt || line - s->pt >= s->h) continue;
    for (size_t kx = 0; kx < s->kw; ++kx) {
      const size_t column = ox * s->sw + kx * s->dw;
      if (column < s->pl || column - s->pl >= s->w) continue;
      const float *seen = x + ((line - s->pt) * s->w + column - s->pl) * c;
      if (v->how.average)
        v->kernel->collect(seen, sums, c);
      else
        v->kernel->most(seen, most, c);
    }
  }
}

/* A task is a line of the output. */
static void run_pool(const void *params, void *const *buffers, void *scratch, long task) {
  const struct pool *v = params;
  const struct qir_float_window *s = &v->how.s;
  const size_t c = v->how.channels, image = (size_t)task / s->oh, oy = (size_t)task % s->oh;
  const float *x = (const float *)buffers[v->how.x] + image * s->h * s->w * c;
  float *y = (float *)buffers[v->how.y] + (size_t)task * s->ow * c;
  double *sums = scratch;
  const int pad = v->how.count_pad;
  const size_t bottom = s->pt + s->h + (pad ? v->how.pb : 0);
  const size_t right = s->pl + s->w + (pad ? v->how.pr : 0);
  const double rows = share(oy, s->sh, s->kh, pad ? 0 : s->pt, bottom);
  for (size_t ox = 0; ox < s->ow; ++ox, y += c) {
    if (!v->how.average) {
      for (size_t i = 0; i < c; ++i) y[i] = -INFINITY;
      take(v, x, oy, ox, y, NULL);
      continue;
    }
    for (size_t i = 0; i < c; ++i) sums[i] = 0;
    take(v, x, oy, ox, NULL, sums);
    const double count = rows * share(ox, s->sw, s->kw, pad ? 0 : s->pl, right);
    for (size_t i = 0; i < c; ++i) {
      const float mean = (float)(sums[i] / count);
      y[i] = mean != mean ? NAN : mean;
    }
  }
}

int qir_last_pool_make(uint32_t isa, const struct qir_last_pool *how, struct qir_step *step) {
  struct pool *v = qir_step_alloc(sizeof *v);
  if (!v) return 0;
  *v = (struct pool){QIR_SELECT(qir_unary_kernels, isa), *how};
  const size_t tasks = how->s.ow ? how->s.planes * how->s.oh : 0;
  *step = (struct qir_step){run_pool, v, (long)tasks,
                            how->average ? qir_round_up(how->channels * sizeof(double), 64) : 0};
  return 1;
}
