#include "softmax.h"

#include "rows/rows.h"

enum {
  TOGETHER = 8 /* rows whose sums are added in turn: one addition waits for the one before */
};

struct softmax {
  struct qir_softmax s;
  const struct qir_rows_kernel *kernel;
  int x, y;
  uint8_t beyond;  /* the code of what does not fit 32 bits */
  size_t per_task; /* rows */
};

static uint8_t beyond(const struct qir_code *to) {
  const int32_t code = (int32_t)(0x80000000u + (uint32_t)to->zero);
  if (!to->flip) return (uint8_t)code;
  return (uint8_t)(code < to->low ? to->low : to->high);
}

/* Where in the table a row's greatest code has the last entry. */
static const float *table_of(const struct qir_softmax *s, const uint8_t *x) {
  uint8_t most = 0;
  for (size_t i = 0; i < s->width; ++i) {
    const uint8_t code = x[i] ^ s->x_flip;
    most = code > most ? code : most;
  }
  return s->table + 255 - most;
}

static void run_rows(const struct softmax *v, const uint8_t *x, size_t count, float *powers,
                     uint8_t *y) {
  const size_t width = v->s.width;
  const uint8_t flip = v->s.x_flip;
  const float *tables[TOGETHER];
  float sums[TOGETHER] = {0};
  for (size_t r = 0; r < count; ++r) tables[r] = table_of(&v->s, x + r * width);
  if (count == TOGETHER) {
    for (size_t i = 0; i < width; ++i)
      for (size_t r = 0; r < TOGETHER; ++r)
        sums[r] += powers[r * width + i] = tables[r][x[r * width + i] ^ flip];
  } else {
    for (size_t r = 0; r < count; ++r)
      for (size_t i = 0; i < width; ++i)
        sums[r] += powers[r * width + i] = tables[r][x[r * width + i] ^ flip];
  }
  size_t end = width;
#if defined(QIR_FAULT_TAIL_SOFTMAX) /* never in a build to use, as in gemm.c */
  --end;
#endif
  const qir_share_fn share = v->s.inverse ? v->kernel->share_inverse
                             : v->s.wide  ? v->kernel->share_wide
                                          : v->kernel->share;
  for (size_t r = 0; r < count; ++r) {
    const struct qir_share how = {v->s.gain, sums[r], v->s.code, v->beyond};
    share(&how, powers + r * width, y + r * width, end);
  }
}

static void run(const void *params, void *const *buffers, void *scratch, long task) {
  const struct softmax *v = params;
  const size_t first = (size_t)task * v->per_task, all = v->s.rows;
  const size_t end = first + v->per_task < all ? first + v->per_task : all;
  for (size_t row = first; row < end; row += TOGETHER) {
    const size_t count = end - row < TOGETHER ? end - row : TOGETHER;
    run_rows(v, (const uint8_t *)buffers[v->x] + row * v->s.width, count, scratch,
             (uint8_t *)buffers[v->y] + row * v->s.width);
  }
}

int qir_softmax_make(uint32_t isa, const struct qir_softmax *softmax, int x, int y,
                     struct qir_step *step) {
  enum { CHUNK = 8 * 1024 /* codes of a task */ };
  const size_t width = softmax->width ? softmax->width : 1;
  struct softmax *v = qir_step_alloc(sizeof *v);
  if (!v) return 0;
  *v = (struct softmax){.s = *softmax,
                        .kernel = QIR_SELECT(qir_rows_kernels, isa),
                        .x = x,
                        .y = y,
                        .beyond = beyond(&softmax->code),
                        .per_task = qir_round_up(CHUNK / width + 1, TOGETHER)};
  *step = (struct qir_step){run, v, (long)((softmax->rows + v->per_task - 1) / v->per_task),
                            qir_round_up(TOGETHER * width * sizeof(float), 64)};
  return 1;
}
