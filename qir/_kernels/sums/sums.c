#include "sums.h"

#include <string.h>

#define QIR_SUMS_DECLARE(name)                                                                \
  void qir_sums_##name(const struct qir_sum_window *, uint8_t, const struct qir_sum_levels *, \
                       uint8_t, uint8_t *);
QIR_SUMS_DECLARE(scalar)
#if defined(QIR_X86)
QIR_SUMS_DECLARE(avx2)
QIR_SUMS_DECLARE(avx512)
#endif

const struct qir_sums_kernel qir_sums_kernels[] = {
#if defined(QIR_X86)
    {"qir_sums_avx512", QIR_ISA_AVX512, qir_sums_avx512},
    {"qir_sums_avx2", QIR_ISA_AVX2, qir_sums_avx2},
#endif
    {"qir_sums_scalar", QIR_ISA_SCALAR, qir_sums_scalar},
};

struct sums {
  struct qir_sums how;
  const struct qir_sums_kernel *kernel;
  struct qir_sum_levels *levels;
  uint8_t *kind;
};

/* The part of a window that lies in an axis of `size`: where it begins, and how long it is. */
static size_t inside(size_t at, size_t step, size_t before, size_t window, size_t size,
                     size_t *first) {
  const size_t begin = at * step, end = begin + window;
  *first = begin > before ? begin - before : 0;
  const size_t last = end > before ? end - before : 0, stop = last < size ? last : size;
  return stop > *first ? stop - *first : 0;
}

/* One task is one row of the output. */
static void run(const void *params, void *const *buffers, void *scratch, long task) {
  (void)scratch;
  const struct sums *v = params;
  const struct qir_sums *m = &v->how;
  const size_t oy = (size_t)task % m->oh, n = (size_t)task / m->oh;
  const uint8_t *image = (const uint8_t *)buffers[m->x] + n * m->h * m->w * m->c;
  uint8_t *y = (uint8_t *)buffers[m->y] + (size_t)task * m->ow * m->c;
  size_t top, left;
  const size_t rows = inside(oy, m->sh, m->pt, m->kh, m->h, &top);
  for (size_t ox = 0; ox < m->ow; ++ox) {
    struct qir_sum_window of = {.rows = rows, .stride = m->w * m->c, .c = m->c};
    of.columns = inside(ox, m->sw, m->pl, m->kw, m->w, &left);
    if (!of.columns) of.rows = 0;
    of.x = of.rows ? image + (top * m->w + left) * m->c : image;
    v->kernel->run(&of, m->x_flip, v->levels + v->kind[oy * m->ow + ox], m->y_flip, y + ox * m->c);
  }
}

static int32_t guess_of(const struct qir_sum_levels *levels, int32_t sum) {
  float near = (float)sum * levels->gain + levels->offset;
  near = near > 0 ? near : 0;
  near = near < QIR_LEVELS ? near : QIR_LEVELS;
  return (int32_t)near;
}

/* The guess never falls, so it is near all sums of a byte if it is near the first and the last. */
static int is_near(const struct qir_sum_levels *levels, int32_t most) {
  for (int32_t byte = 0; byte <= QIR_LEVELS; ++byte) {
    const int32_t first = levels->level[byte] > 0 ? levels->level[byte] : 0;
    const int32_t next = levels->level[byte + 1], last = next > most ? most : next - 1;
    if (first > last) continue; /* no sum becomes this byte */
    if (guess_of(levels, first) < byte - 1 || guess_of(levels, last) > byte + 1) return 0;
  }
  return 1;
}

static void prepare(struct qir_sum_levels *to, const int32_t *from, int32_t most) {
  to->level[0] = INT32_MIN;
  memcpy(to->level + 1, from, QIR_LEVELS * sizeof *from);
  to->level[QIR_LEVELS + 1] = INT32_MAX;
  /* A line through the first and the last byte that a sum begins. */
  int low = 1, high = QIR_LEVELS;
  while (low < high && to->level[low] <= 0) ++low;
  while (low < high && to->level[high] > most) --high;
  const float span = (float)to->level[high] - (float)to->level[low];
  to->gain = high > low && span > 0 ? (float)(high - low) / span : 0;
  to->offset = (float)low - (float)to->level[low] * to->gain + (to->gain > 0 ? 0.01f : 0);
  if (to->gain <= 0) to->offset = (float)low;
  to->near = is_near(to, most);
}

int qir_sums_make(uint32_t isa, const struct qir_sums *how, struct qir_step *step) {
  const size_t head = qir_round_up(sizeof(struct sums), 64);
  const size_t table = qir_round_up(how->kinds * sizeof(struct qir_sum_levels), 64);
  struct sums *v = qir_step_alloc(head + table + how->oh * how->ow);
  if (!v) return 0;
  v->how = *how;
  v->kernel = QIR_SELECT(qir_sums_kernels, isa);
  v->levels = (struct qir_sum_levels *)((char *)v + head);
  v->kind = (uint8_t *)v + head + table;
  const int32_t most = (int32_t)(how->kh * how->kw * UINT8_MAX);
  for (size_t i = 0; i < how->kinds; ++i)
    prepare(v->levels + i, how->levels + i * QIR_LEVELS, most);
  if (how->oh * how->ow) memcpy(v->kind, how->kind, how->oh * how->ow);
  *step = (struct qir_step){run, v, (long)(how->n * how->oh), 0};
  return 1;
}
