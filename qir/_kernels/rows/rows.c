#include "rows.h"

#include <string.h>

#define QIR_ROWS_KERNEL(name, isa)                                                             \
  void qir_rows_layer_norm_##name(const struct qir_layer_norm *, const float *, float *);      \
  void qir_rows_softmax_##name(const float *, size_t, double *, float *);                      \
  void qir_rows_short_softmax_##name(const float *, size_t, float *, float *);                 \
  void qir_rows_share_##name(const struct qir_share *, const float *, uint8_t *, size_t);      \
  void qir_rows_share_wide_##name(const struct qir_share *, const float *, uint8_t *, size_t); \
  void qir_rows_share_inverse_##name(const struct qir_share *, const float *, uint8_t *, size_t);
#include "kernels.inc"
#undef QIR_ROWS_KERNEL

#define QIR_ROWS_KERNEL(name, isa) \
  {"qir_rows_" #name,              \
   isa,                            \
   qir_rows_layer_norm_##name,     \
   qir_rows_softmax_##name,        \
   qir_rows_short_softmax_##name,  \
   qir_rows_share_##name,          \
   qir_rows_share_wide_##name,     \
   qir_rows_share_inverse_##name},
const struct qir_rows_kernel qir_rows_kernels[] = {
#include "kernels.inc"
};
#undef QIR_ROWS_KERNEL
const size_t qir_rows_kernel_count = sizeof qir_rows_kernels / sizeof *qir_rows_kernels;

struct rows {
  const struct qir_rows_kernel *kernel;
  struct qir_layer_norm norm;
  size_t rows, width, per_task;
  int x, y;
  float numbers[]; /* gamma and beta */
};

static struct rows *make(uint32_t isa, size_t rows, size_t width, size_t numbers, int x, int y,
                         struct qir_step *step) {
  enum { CHUNK = 4 * 1024 /* numbers of a task */ };
  struct rows *v = qir_step_alloc(sizeof *v + numbers * sizeof(float));
  if (!v) return NULL;
  *v = (struct rows){.kernel = QIR_SELECT(qir_rows_kernels, isa),
                     .rows = width ? rows : 0,
                     .width = width,
                     .per_task = CHUNK / (width ? width : 1) + 1,
                     .x = x,
                     .y = y};
  step->params = v;
  step->tasks = (long)((v->rows + v->per_task - 1) / v->per_task);
  step->scratch = 0;
  return v;
}

static size_t end_of(const struct rows *v, size_t first) {
  return first + v->per_task < v->rows ? first + v->per_task : v->rows;
}

static void run_layer_norm(const void *params, void *const *buffers, void *scratch, long task) {
  (void)scratch;
  const struct rows *v = params;
  const size_t first = (size_t)task * v->per_task, end = end_of(v, first);
  for (size_t row = first; row < end; ++row)
    v->kernel->layer_norm(&v->norm, (const float *)buffers[v->x] + row * v->width,
                          (float *)buffers[v->y] + row * v->width);
}

int qir_layer_norm_make(uint32_t isa, size_t rows, const struct qir_layer_norm *how, int x, int y,
                        struct qir_step *step) {
  const size_t width = how->width;
  struct rows *v = make(isa, rows, width, 2 * width, x, y, step);
  if (!v) return 0;
  v->norm = *how;
  if (width) v->norm.gamma = memcpy(v->numbers, how->gamma, width * sizeof(float));
  if (how->beta) v->norm.beta = memcpy(v->numbers + width, how->beta, width * sizeof(float));
  step->run = run_layer_norm;
  return 1;
}

static void run_softmax(const void *params, void *const *buffers, void *scratch, long task) {
  const struct rows *v = params;
  const size_t first = (size_t)task * v->per_task, end = end_of(v, first);
  for (size_t row = first; row < end; ++row)
    v->kernel->softmax((const float *)buffers[v->x] + row * v->width, v->width, scratch,
                       (float *)buffers[v->y] + row * v->width);
}

static void run_short_softmax(const void *params, void *const *buffers, void *scratch, long task) {
  const struct rows *v = params;
  const size_t first = (size_t)task * v->per_task, end = end_of(v, first);
  for (size_t row = first; row < end; ++row)
    v->kernel->short_softmax((const float *)buffers[v->x] + row * v->width, v->width, scratch,
                             (float *)buffers[v->y] + row * v->width);
}

int qir_row_softmax_make(uint32_t isa, size_t rows, size_t width, int in_f32, int x, int y,
                         struct qir_step *step) {
  if (!make(isa, rows, width, 0, x, y, step)) return 0;
  step->run = in_f32 ? run_short_softmax : run_softmax;
  step->scratch = qir_round_up(width * sizeof(double), 64);
  return 1;
}
