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

/* The part of a window that is inside an axis of `size`: where it begins, and how long it is. */
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
  to->offset = to->gain > 0 ? (float)low - (float)to->level[low] * to->gain : (float)low;
}

enum { MOST_BYTES = 1 << 16 /* of a table: one that fits the second cache */ };

/* The bytes of all sums; returns where the next table begins. */
static uint8_t *list(struct qir_sum_levels *to, int32_t most, uint8_t flip, uint8_t *table) {
  int32_t byte = 0;
  to->bytes = table;
  for (int32_t sum = 0; sum <= most; ++sum) {
    while (to->level[byte + 1] <= sum) ++byte;
    table[sum] = (uint8_t)byte ^ flip;
  }
  return table + most + 1;
}

int qir_sums_make(uint32_t isa, const struct qir_sums *how, struct qir_step *step) {
  const size_t head = qir_round_up(sizeof(struct sums), 64);
  const size_t rows = qir_round_up(how->kinds * sizeof(struct qir_sum_levels), 64);
  const size_t pixels = how->oh * how->ow, sums = how->kh * how->kw * UINT8_MAX + 1;
  const size_t tables = sums <= MOST_BYTES ? how->kinds * sums : 0;
  struct sums *v = qir_step_alloc(head + rows + pixels + tables);
  if (!v) return 0;
  v->how = *how;
  v->kernel = QIR_SELECT(qir_sums_kernels, isa);
  v->levels = (struct qir_sum_levels *)((char *)v + head);
  v->kind = (uint8_t *)v + head + rows;
  uint8_t *table = v->kind + pixels;
  const int32_t most = (int32_t)(sums - 1);
  for (size_t i = 0; i < how->kinds; ++i) {
    prepare(v->levels + i, how->levels + i * QIR_LEVELS, most);
    if (tables) table = list(v->levels + i, most, how->y_flip, table);
  }
  if (pixels) memcpy(v->kind, how->kind, pixels);
  *step = (struct qir_step){run, v, (long)(how->n * how->oh), 0};
  return 1;
}
