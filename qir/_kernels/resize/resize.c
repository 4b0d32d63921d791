#include "resize.h"

#include <string.h>

#define QIR_RESIZE_DECLARE(name) \
  void qir_resize_##name(const struct qir_resize *, const struct qir_resize_row *, uint8_t *);
QIR_RESIZE_DECLARE(scalar)
#if defined(QIR_X86)
QIR_RESIZE_DECLARE(avx2)
QIR_RESIZE_DECLARE(avx512)
#endif

static const struct {
  uint32_t isa;
  qir_resize_fn run;
} table[] = {
#if defined(QIR_X86)
    {QIR_ISA_AVX512, qir_resize_avx512},
    {QIR_ISA_AVX2, qir_resize_avx2},
#endif
    {QIR_ISA_SCALAR, qir_resize_scalar},
};

struct resize {
  struct qir_resize how;
  qir_resize_fn run;
};

/* One task is one row of results. */
static void run(const void *params, void *const *buffers, void *scratch, long task) {
  (void)scratch;
  const struct resize *v = params;
  const struct qir_resize *m = &v->how;
  const size_t oy = (size_t)task % m->oh, n = (size_t)task / m->oh, row = m->w * m->c;
  const uint8_t *image = (const uint8_t *)buffers[m->x] + n * m->h * row;
  const struct qir_resize_row between = {
      .above = image + (size_t)m->rows.low[oy] * row,
      .below = image + (size_t)m->rows.high[oy] * row,
      .above_weight = m->rows.low_weight[oy],
      .below_weight = m->rows.high_weight[oy],
  };
  v->run(m, &between, (uint8_t *)buffers[m->y] + (size_t)task * m->ow * m->c);
}

static char *copy(struct qir_resize_axis *axis, size_t size, char *to) {
  const int32_t **arrays[] = {&axis->low, &axis->high, &axis->low_weight, &axis->high_weight};
  for (int i = 0; size && i < 4; ++i, to += size * sizeof(int32_t))
    *arrays[i] = memcpy(to, *arrays[i], size * sizeof(int32_t));
  return to;
}

int qir_resize_make(uint32_t isa, const struct qir_resize *how, struct qir_step *step) {
  const size_t head = qir_round_up(sizeof(struct resize), 64);
  struct resize *v = qir_step_alloc(head + 4 * (how->oh + how->ow) * sizeof(int32_t));
  if (!v) return 0;
  v->how = *how;
  v->run = QIR_SELECT(table, isa)->run;
  copy(&v->how.columns, how->ow, copy(&v->how.rows, how->oh, (char *)v + head));
  *step = (struct qir_step){run, v, (long)(how->n * how->oh), 0};
  return 1;
}
