#include "softmax.h"

struct softmax {
  struct qir_softmax s;
  int x, y;
  size_t per_task; /* rows */
};

static uint8_t encode(float real, const struct qir_code *to) {
  if (!(real < 2147483648.0f)) {
    const int32_t code = (int32_t)(0x80000000u + (uint32_t)to->zero);
    if (!to->flip) return (uint8_t)code;
    return (uint8_t)(code < to->low ? to->low : to->high);
  }
  return qir_encode(real, to);
}

/* real >= 0 */
static uint8_t encode_wide(double real, const struct qir_code *to) {
  const double high = to->high - to->zero;
  const double whole = 6755399441055744.0; /* 1.5 * 2^52, see qir_round */
  real = real < high ? real : high;
  return (uint8_t)((int32_t)((real + whole) - whole) + to->zero);
}

static void run_row(const struct qir_softmax *s, const uint8_t *x, uint8_t *y) {
  uint8_t most = 0;
  for (size_t i = 0; i < s->width; ++i) {
    const uint8_t code = x[i] ^ s->x_flip;
    most = code > most ? code : most;
  }
  const float *table = s->table + 255 - most;
  float sum = 0;
  for (size_t i = 0; i < s->width; ++i) sum += table[x[i] ^ s->x_flip];
  size_t end = s->width;
#if defined(QIR_FAULT_TAIL_SOFTMAX) /* never in a build to use, as in gemm.c */
  --end;
#endif
  if (s->wide)
    for (size_t i = 0; i < end; ++i)
      y[i] = encode_wide((double)table[x[i] ^ s->x_flip] * s->gain / sum, &s->code);
  else
    for (size_t i = 0; i < end; ++i)
      y[i] = encode(table[x[i] ^ s->x_flip] * s->gain / sum, &s->code);
}

static void run(const void *params, void *const *buffers, void *scratch, long task) {
  (void)scratch;
  const struct softmax *v = params;
  const size_t first = (size_t)task * v->per_task, all = v->s.rows;
  const size_t end = first + v->per_task < all ? first + v->per_task : all;
  for (size_t row = first; row < end; ++row)
    run_row(&v->s, (const uint8_t *)buffers[v->x] + row * v->s.width,
            (uint8_t *)buffers[v->y] + row * v->s.width);
}

int qir_softmax_make(const struct qir_softmax *softmax, int x, int y, struct qir_step *step) {
  enum { CHUNK = 8 * 1024 /* codes of a task */ };
  struct softmax *v = qir_step_alloc(sizeof *v);
  if (!v) return 0;
  *v = (struct softmax){*softmax, x, y, CHUNK / (softmax->width ? softmax->width : 1) + 1};
  *step = (struct qir_step){run, v, (long)((softmax->rows + v->per_task - 1) / v->per_task), 0};
  return 1;
}
