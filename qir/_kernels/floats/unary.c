#include "unary.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#define QIR_SGEMM_KERNEL(name, isa, nr, width)                                                     \
  void qir_unary_bound_##name(const struct qir_unary *, const float *, float *, size_t);           \
  void qir_unary_sigmoid_##name(const struct qir_unary *, const float *, float *, size_t);         \
  void qir_unary_tanh_##name(const struct qir_unary *, const float *, float *, size_t);            \
  void qir_unary_erf_##name(const struct qir_unary *, const float *, float *, size_t);             \
  void qir_unary_gelu_##name(const struct qir_unary *, const float *, float *, size_t);            \
  void qir_unary_silu_##name(const struct qir_unary *, const float *, float *, size_t);            \
  void qir_unary_sqrt_##name(const struct qir_unary *, const float *, float *, size_t);            \
  void qir_unary_square_##name(const struct qir_unary *, const float *, float *, size_t);          \
  void qir_unary_hard_sigmoid_##name(const struct qir_unary *, const float *, float *, size_t);    \
  void qir_unary_leaky_relu_##name(const struct qir_unary *, const float *, float *, size_t);      \
  void qir_unary_abs_##name(const struct qir_unary *, const float *, float *, size_t);             \
  void qir_unary_normalize_##name(const struct qir_channel *, const float *, float *, size_t);     \
  void qir_unary_collect_##name(const float *, double *, size_t);                                  \
  void qir_unary_hard_swish_##name(const struct qir_unary *, const float *, float *, size_t);      \
  void qir_unary_near_tanh_##name(const struct qir_unary *, const float *, double *, size_t);      \
  void qir_unary_near_erf_##name(const struct qir_unary *, const float *, double *, size_t);       \
  void qir_unary_near_gelu_##name(const struct qir_unary *, const float *, double *, size_t);      \
  void qir_unary_near_exp_##name(const struct qir_unary *, const float *, double *, size_t);       \
  void qir_unary_near_elu_##name(const struct qir_unary *, const float *, double *, size_t);       \
  void qir_unary_near_selu_##name(const struct qir_unary *, const float *, double *, size_t);      \
  void qir_unary_near_softplus_##name(const struct qir_unary *, const float *, double *, size_t);  \
  void qir_unary_near_log_sigmoid_##name(const struct qir_unary *, const float *, double *,        \
                                         size_t);                                                  \
  void qir_unary_near_sigmoid_##name(const struct qir_unary *, const float *, double *, size_t);   \
  void qir_unary_near_silu_##name(const struct qir_unary *, const float *, double *, size_t);      \
  void qir_unary_near_mish_##name(const struct qir_unary *, const float *, double *, size_t);      \
  void qir_unary_near_gelu_tanh_##name(const struct qir_unary *, const float *, double *, size_t); \
  int qir_unary_settle_##name(const double *, double, float *, uint8_t *, size_t);                 \
  void qir_unary_most_##name(const float *, float *, size_t);                                      \
  void qir_unary_scale_##name(const float *, float *, size_t);                                     \
  void qir_unary_plus_##name(const float *, float *, size_t);                                      \
  void qir_unary_keep_##name(float, float, float *, size_t);                                       \
  void qir_unary_means_##name(const float *, size_t, size_t, size_t, float *);                     \
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
       qir_unary_leaky_relu_##name,            \
       qir_unary_abs_##name,                   \
   },                                          \
   qir_unary_near_tanh_##name,                 \
   qir_unary_near_erf_##name,                  \
   qir_unary_near_gelu_##name,                 \
   qir_unary_near_exp_##name,                  \
   qir_unary_near_elu_##name,                  \
   qir_unary_near_selu_##name,                 \
   qir_unary_near_softplus_##name,             \
   qir_unary_near_log_sigmoid_##name,          \
   qir_unary_near_sigmoid_##name,              \
   qir_unary_near_silu_##name,                 \
   qir_unary_near_mish_##name,                 \
   qir_unary_near_gelu_tanh_##name,            \
   qir_unary_settle_##name,                    \
   qir_unary_most_##name,                      \
   qir_unary_sum_##name,                       \
   qir_unary_normalize_##name,                 \
   qir_unary_collect_##name,                   \
   qir_unary_scale_##name,                     \
   qir_unary_plus_##name,                      \
   qir_unary_keep_##name,                      \
   qir_unary_means_##name},
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

/* One line of the input as a tap sees it, from element `start` on, and `pad` beside it. */
static void see(const struct qir_float_window *s, const float *row, ptrdiff_t start, float pad,
                float *to) {
  for (size_t i = 0; i < s->ow; ++i) {
    const ptrdiff_t at = start + (ptrdiff_t)(i * s->sw);
    to[i] = at < 0 || at >= (ptrdiff_t)s->w ? pad : row[at];
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
        see(s, row, (ptrdiff_t)(kx * s->dw) - (ptrdiff_t)s->pl, -INFINITY, seen);
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

/* ---- means of windows ---- */

struct average {
  const struct qir_unary_kernel *kernel;
  struct qir_float_window s;
  size_t below, right; /* where padding ends */
  int count_pad, x, y;
};

/* Elements from low to high that a window along one axis has a share of. */
static double share(size_t at, size_t stride, size_t kernel, size_t low, size_t high) {
  const size_t start = at * stride, end = start + kernel;
  const size_t first = start > low ? start : low, last = end < high ? end : high;
  return last > first ? (double)(last - first) : 0;
}

static void run_average(const void *params, void *const *buffers, void *scratch, long task) {
  const struct average *v = params;
  const struct qir_float_window *s = &v->s;
  const float *x = (const float *)buffers[v->x] + (size_t)task * s->h * s->w;
  float *y = (float *)buffers[v->y] + (size_t)task * s->oh * s->ow, *seen = scratch;
  double *sums = (double *)((char *)scratch + qir_round_up(s->ow * sizeof(float), 64));
  const size_t top = v->count_pad ? 0 : s->pt, left = v->count_pad ? 0 : s->pl;
  const size_t bottom = s->pt + s->h + (v->count_pad ? v->below : 0);
  const size_t right = s->pl + s->w + (v->count_pad ? v->right : 0);
  for (size_t oy = 0; oy < s->oh; ++oy, y += s->ow) {
    for (size_t ox = 0; ox < s->ow; ++ox) sums[ox] = 0;
    for (size_t ky = 0; ky < s->kh; ++ky) {
      const size_t line = oy * s->sh + ky;
      if (line < s->pt || line - s->pt >= s->h) continue;
      for (size_t kx = 0; kx < s->kw; ++kx) {
        see(s, x + (line - s->pt) * s->w, (ptrdiff_t)kx - (ptrdiff_t)s->pl, 0, seen);
        v->kernel->collect(seen, sums, s->ow);
      }
    }
    const double rows = share(oy, s->sh, s->kh, top, bottom);
    for (size_t ox = 0; ox < s->ow; ++ox) {
      const float mean = (float)(sums[ox] / (rows * share(ox, s->sw, s->kw, left, right)));
      y[ox] = mean != mean ? NAN : mean;
    }
  }
}

int qir_float_avg_pool_make(uint32_t isa, const struct qir_float_window *window, size_t pb,
                            size_t pr, int count_pad, int x, int y, struct qir_step *step) {
  struct average *v = qir_step_alloc(sizeof *v);
  if (!v) return 0;
  *v = (struct average){
      QIR_SELECT(qir_unary_kernels, isa), *window, pb, pr, count_pad, x, y,
  };
  const size_t line = window->ow;
  *step = (struct qir_step){
      run_average, v, (long)window->planes,
      qir_round_up(line * sizeof(float), 64) + qir_round_up(line * sizeof(double), 64)};
  return 1;
}

/* ---- batch norm ---- */

struct batch_norm {
  const struct qir_unary_kernel *kernel;
  size_t channels, inner;
  int x, y;
  struct qir_channel how[];
};

/* A task is one channel of one image. */
static void run_batch_norm(const void *params, void *const *buffers, void *scratch, long task) {
  (void)scratch;
  const struct batch_norm *v = params;
  const size_t at = (size_t)task * v->inner;
  v->kernel->normalize(&v->how[(size_t)task % v->channels], (const float *)buffers[v->x] + at,
                       (float *)buffers[v->y] + at, v->inner);
}

int qir_float_batch_norm_make(uint32_t isa, size_t outer, size_t channels, size_t inner,
                              const struct qir_channel *how, int x, int y, struct qir_step *step) {
  struct batch_norm *v = qir_step_alloc(sizeof *v + channels * sizeof *how);
  if (!v) return 0;
  *v = (struct batch_norm){QIR_SELECT(qir_unary_kernels, isa), channels, inner, x, y};
  if (channels) memcpy(v->how, how, channels * sizeof *how);
  *step = (struct qir_step){run_batch_norm, v, (long)(outer * channels), 0};
  return 1;
}
