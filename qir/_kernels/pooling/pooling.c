#include "pooling.h"

#define QIR_POOLING_KERNEL(name, isa)                                                         \
  void qir_pooling_max_##name(const struct qir_pooling_rows *, uint8_t, uint8_t *);           \
  void qir_pooling_average_##name(const struct qir_pooling_rows *, float,                     \
                                  const struct qir_average *, uint8_t *);                     \
  void qir_pooling_global_##name(const uint8_t *, size_t, size_t, const struct qir_average *, \
                                 uint8_t *);                                                  \
  void qir_pooling_mean_##name(const uint8_t *, size_t, size_t, const struct qir_mean *, float *);
#include "kernels.inc"
#undef QIR_POOLING_KERNEL

#define QIR_POOLING_KERNEL(name, isa)                     \
  {"qir_pooling_" #name,      isa,                        \
   qir_pooling_max_##name,    qir_pooling_average_##name, \
   qir_pooling_global_##name, qir_pooling_mean_##name},
const struct qir_pooling_kernel qir_pooling_kernels[] = {
#include "kernels.inc"
};
#undef QIR_POOLING_KERNEL
const size_t qir_pooling_kernel_count = sizeof qir_pooling_kernels / sizeof *qir_pooling_kernels;

struct pooling {
  const struct qir_pooling_kernel *kernel;
  struct qir_window s;
  struct qir_average how;
  int average; /* else maximum */
  int x, y;
};

/* Pointers to the elements of a window that lie in x, row by row. */
static size_t point(const struct qir_window *s, const uint8_t *image, size_t oy, size_t ox,
                    const uint8_t **rows) {
  size_t count = 0;
  for (size_t ky = 0; ky < s->kh; ++ky) {
    const size_t iy = oy * s->sh + ky * s->dh - s->pt; /* wraps below zero: then not below h */
    if (iy >= s->h) continue;
    for (size_t kx = 0; kx < s->kw; ++kx) {
      const size_t ix = ox * s->sw + kx * s->dw - s->pl;
      if (ix < s->w) rows[count++] = image + (iy * s->w + ix) * s->c;
    }
  }
  return count;
}

/* One task is one row of the output. */
static void run(const void *params, void *const *buffers, void *scratch, long task) {
  const struct pooling *v = params;
  const struct qir_window *s = &v->s;
  const size_t n = (size_t)task / s->oh, oy = (size_t)task % s->oh;
  const uint8_t *image = (const uint8_t *)buffers[v->x] + n * s->h * s->w * s->c;
  uint8_t *y = (uint8_t *)buffers[v->y] + (size_t)task * s->ow * s->c;
  const uint8_t **rows = scratch;
  for (size_t ox = 0; ox < s->ow; ++ox, y += s->c) {
    const struct qir_pooling_rows x = {rows, point(s, image, oy, ox, rows), s->c};
    if (v->average)
      v->kernel->average(&x, (float)(v->how.count_pad ? s->kh * s->kw : x.count), &v->how, y);
    else
      v->kernel->max(&x, v->how.x_flip, y);
  }
}

static int make(uint32_t isa, const struct qir_window *window, const struct qir_average *how,
                int average, int x, int y, struct qir_step *step) {
  struct pooling *v = qir_step_alloc(sizeof *v);
  if (!v) return 0;
  *v = (struct pooling){QIR_SELECT(qir_pooling_kernels, isa), *window, *how, average, x, y};
  *step = (struct qir_step){run, v, (long)(window->n * window->oh),
                            qir_round_up(window->kh * window->kw * sizeof(void *), 64)};
  return 1;
}

int qir_max_pool_make(uint32_t isa, const struct qir_window *window, uint8_t flip, int x, int y,
                      struct qir_step *step) {
  const struct qir_average how = {.x_flip = flip};
  return make(isa, window, &how, 0, x, y, step);
}

int qir_average_pool_make(uint32_t isa, const struct qir_window *window,
                          const struct qir_average *how, int x, int y, struct qir_step *step) {
  return make(isa, window, how, 1, x, y, step);
}

struct global {
  const struct qir_pooling_kernel *kernel;
  struct qir_average how;
  size_t pixels, c;
  int x, y;
};

static void run_global(const void *params, void *const *buffers, void *scratch, long task) {
  (void)scratch;
  const struct global *v = params;
  v->kernel->global((const uint8_t *)buffers[v->x] + (size_t)task * v->pixels * v->c, v->pixels,
                    v->c, &v->how, (uint8_t *)buffers[v->y] + (size_t)task * v->c);
}

int qir_global_average_make(uint32_t isa, size_t n, size_t pixels, size_t c,
                            const struct qir_average *how, int x, int y, struct qir_step *step) {
  struct global *v = qir_step_alloc(sizeof *v);
  if (!v) return 0;
  *v = (struct global){QIR_SELECT(qir_pooling_kernels, isa), *how, pixels, c, x, y};
  *step = (struct qir_step){run_global, v, (long)n, 0};
  return 1;
}

struct mean {
  const struct qir_pooling_kernel *kernel;
  struct qir_mean how;
  size_t outer, rows, inner, per_task;
  int x, y;
};

static void run_mean(const void *params, void *const *buffers, void *scratch, long task) {
  (void)scratch;
  const struct mean *v = params;
  const size_t first = (size_t)task * v->per_task;
  const size_t end = first + v->per_task < v->outer ? first + v->per_task : v->outer;
  for (size_t o = first; o < end; ++o)
    v->kernel->mean((const uint8_t *)buffers[v->x] + o * v->rows * v->inner, v->rows, v->inner,
                    &v->how, (float *)buffers[v->y] + o * v->inner);
}

int qir_mean_make(uint32_t isa, size_t outer, size_t rows, size_t inner, const struct qir_mean *how,
                  int x, int y, struct qir_step *step) {
  enum { CHUNK = 16 * 1024 /* codes of a task */ };
  struct mean *v = qir_step_alloc(sizeof *v);
  if (!v) return 0;
  *v = (struct mean){.kernel = QIR_SELECT(qir_pooling_kernels, isa),
                     .how = *how,
                     .outer = outer,
                     .rows = rows,
                     .inner = inner,
                     .per_task = CHUNK / (rows * inner + 1) + 1,
                     .x = x,
                     .y = y};
  *step = (struct qir_step){run_mean, v, (long)((outer + v->per_task - 1) / v->per_task), 0};
  return 1;
}
