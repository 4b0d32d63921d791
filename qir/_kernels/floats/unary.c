#include "unary.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#define QIR_SGEMM_KERNEL(name, isa, nr, width)                                                  \
  void qir_unary_bound_##name(const struct qir_unary *, const float *, float *, size_t);        \
  void qir_unary_sigmoid_##name(const struct qir_unary *, const float *, float *, size_t);      \
  void qir_unary_tanh_##name(const struct qir_unary *, const float *, float *, size_t);         \
  void qir_unary_erf_##name(const struct qir_unary *, const float *, float *, size_t);          \
  void qir_unary_gelu_##name(const struct qir_unary *, const float *, float *, size_t);         \
  void qir_unary_silu_##name(const struct qir_unary *, const float *, float *, size_t);         \
  void qir_unary_sqrt_##name(const struct qir_unary *, const float *, float *, size_t);         \
  void qir_unary_square_##name(const struct qir_unary *, const float *, float *, size_t);       \
  void qir_unary_hard_sigmoid_##name(const struct qir_unary *, const float *, float *, size_t); \
  void qir_unary_hard_swish_##name(const struct qir_unary *, const float *, float *, size_t);   \
  void qir_unary_most_##name(const float *, float *, size_t);                                   \
  double qir_unary_sum_##name(const float *, size_t);
#include "kernels.inc"
#undef QIR_SGEMM_KERNEL

#define QIR_SGEMM_KERNEL(name, isa, nr, width) \
  {"qir_unary_" #name,                         \
   isa,                                        \
   {                                           \
       qir_unary_bound_##name,                 \
       qir_unary_sigmoid_##name,               \
       qir_unary_tanh_##name,                  \
       qir_unary_erf_##name,                   \
       qir_unary_gelu_##name,                  \
       qir_unary_silu_##name,                  \
       qir_unary_sqrt_##name,                  \
       qir_unary_square_##name,                \
       qir_unary_hard_sigmoid_##name,          \
       qir_unary_hard_swish_##name,            \
   },                                          \
   qir_unary_most_##name,                      \
   qir_unary_sum_##name},
const struct qir_unary_kernel qir_unary_kernels[] = {
#include "kernels.inc"
};
#undef QIR_SGEMM_KERNEL
const size_t qir_unary_kernel_count = sizeof qir_unary_kernels / sizeof *qir_unary_kernels;

struct unary {
  const struct qir_unary_kernel *kernel;
  qir_unary_fn run;
  struct qir_unary how;
  struct qir_float_window window;
  size_t size, width, per_task; /* numbers, or rows of `width` */
  int x, y;
};

static struct unary *make(uint32_t isa, size_t size, size_t per_task, int x, int y,
                          struct qir_step *step) {
  struct unary *v = qir_step_alloc(sizeof *v);
  if (!v) return NULL;
  v->kernel = QIR_SELECT(qir_unary_kernels, isa);
  v->size = size;
  v->per_task = per_task;
  v->x = x;
  v->y = y;
  step->params = v;
  step->tasks = (long)((size + per_task - 1) / per_task);
  step->scratch = 0;
  return v;
}

static size_t count_of(const struct unary *v, size_t first) {
  return v->size - first < v->per_task ? v->size - first : v->per_task;
}

static void run_unary(const void *params, void *const *buffers, void *scratch, long task) {
  (void)scratch;
  const struct unary *v = params;
  const size_t first = (size_t)task * v->per_task;
  v->run(&v->how, (const float *)buffers[v->x] + first, (float *)buffers[v->y] + first,
         count_of(v, first));
}

int qir_float_unary_make(uint32_t isa, enum qir_unary_op op, const struct qir_unary *how,
                         size_t size, int x, int y, struct qir_step *step) {
  enum { CHUNK = 8 * 1024 };
  struct unary *v = make(isa, size, CHUNK, x, y, step);
  if (!v) return 0;
  v->run = v->kernel->ops[op];
  v->how = *how;
  step->run = run_unary;
  return 1;
}

/* ---- means ---- */

static void run_mean(const void *params, void *const *buffers, void *scratch, long task) {
  (void)scratch;
  const struct unary *v = params;
  const size_t first = (size_t)task * v->per_task, end = first + count_of(v, first);
  for (size_t i = first; i < end; ++i)
    ((float *)buffers[v->y])[i] =
        (float)(v->kernel->sum((const float *)buffers[v->x] + i * v->width, v->width) /
                (double)v->width);
}

int qir_float_mean_make(uint32_t isa, size_t rows, size_t width, int x, int y,
                        struct qir_step *step) {
  enum { CHUNK = 8 * 1024 };
  struct unary *v = make(isa, rows, CHUNK / (width ? width : 1) + 1, x, y, step);
  if (!v) return 0;
  v->width = width;
  step->run = run_mean;
  return 1;
}

/* ---- maxima ---- */

/* One line of the input as a tap sees it, from element `start` on. */
static void see(const struct qir_float_window *s, const float *row, ptrdiff_t start, float *to) {
  for (size_t i = 0; i < s->ow; ++i) {
    const ptrdiff_t at = start + (ptrdiff_t)(i * s->sw);
    to[i] = at < 0 || at >= (ptrdiff_t)s->w ? -INFINITY : row[at];
  }
}

/* A task is a plane. */
static void run_most(const void *params, void *const *buffers, void *scratch, long task) {
  const struct unary *v = params;
  const struct qir_float_window *s = &v->window;
  const float *x = (const float *)buffers[v->x] + (size_t)task * s->h * s->w;
  float *y = (float *)buffers[v->y] + (size_t)task * s->oh * s->ow, *seen = scratch;
  for (size_t oy = 0; oy < s->oh; ++oy, y += s->ow) {
    for (size_t ox = 0; ox < s->ow; ++ox) y[ox] = -INFINITY;
    for (size_t ky = 0; ky < s->kh; ++ky) {
      const size_t line = oy * s->sh + ky * s->dh;
      if (line < s->pt || line - s->pt >= s->h) continue;
      const float *row = x + (line - s->pt) * s->w;
      for (size_t kx = 0; kx < s->kw; ++kx) {
        see(s, row, (ptrdiff_t)(kx * s->dw) - (ptrdiff_t)s->pl, seen);
        v->kernel->most(seen, y, s->ow);
      }
    }
  }
}

int qir_float_max_pool_make(uint32_t isa, const struct qir_float_window *window, int x, int y,
                            struct qir_step *step) {
  struct unary *v = make(isa, window->planes, 1, x, y, step);
  if (!v) return 0;
  v->window = *window;
  step->run = run_most;
  step->scratch = qir_round_up(window->ow * sizeof(float), 64);
  return 1;
}
