#include "pointwise.h"

enum {
  CHUNK = 1024, /* floats of a value */
  TASK = 16     /* chunks */
};

struct pointwise {
  struct qir_pointwise how;
  const struct qir_elementwise_kernel *elements;
  const struct qir_unary_kernel *unary;
  struct qir_prepared_function functions[QIR_POINTWISE_OPS];
  float constants[][CHUNK];
};

static void apply(const struct pointwise *v, size_t i, const float *const *values, float *y,
                  size_t n) {
  const struct qir_pointwise_op *op = &v->how.op[i];
  const float *a = values[op->a];
  if (op->kind == QIR_POINTWISE_FUNCTION) {
    qir_function_apply(&v->functions[i], a, y, n);
  } else if (op->kind == QIR_POINTWISE_UNARY) {
    v->unary->ops[op->which](&(struct qir_unary){op->low, op->high}, a, y, n);
  } else {
    v->elements->real[op->which](NULL, (const uint8_t *)a, (const uint8_t *)values[op->b],
                                 (uint8_t *)y, n);
  }
}

static void run(const void *params, void *const *buffers, void *scratch, long task) {
  const struct pointwise *v = params;
  const struct qir_pointwise *h = &v->how;
  const size_t first = (size_t)task * TASK * CHUNK, left = h->size - first;
  const size_t end = first + (left < TASK * CHUNK ? left : TASK * CHUNK);
  const size_t given = h->inputs + h->constants;
  const float *values[QIR_POINTWISE_INPUTS + QIR_POINTWISE_CONSTANTS + QIR_POINTWISE_OPS];
  for (size_t i = 0; i < h->constants; ++i) values[h->inputs + i] = v->constants[i];
  for (size_t at = first; at < end; at += CHUNK) {
    const size_t n = end - at < CHUNK ? end - at : CHUNK;
    for (size_t i = 0; i < h->inputs; ++i) values[i] = (const float *)buffers[h->x[i]] + at;
    for (size_t i = 0; i < h->ops; ++i) {
      float *y = i + 1 < h->ops ? (float *)scratch + i * CHUNK : (float *)buffers[h->y] + at;
      apply(v, i, values, y, n);
      values[given + i] = y;
    }
  }
}

int qir_pointwise_make(uint32_t isa, const struct qir_pointwise *how, struct qir_step *step) {
  struct pointwise *v = qir_step_alloc(sizeof *v + how->constants * sizeof v->constants[0]);
  if (!v) return 0;
  v->how = *how;
  v->elements = QIR_SELECT(qir_elementwise_kernels, isa);
  v->unary = QIR_SELECT(qir_unary_kernels, isa);
  for (size_t i = 0; i < how->ops; ++i) {
    const struct qir_pointwise_op *op = &how->op[i];
    if (op->kind == QIR_POINTWISE_FUNCTION)
      v->functions[i] =
          qir_function_prepare(isa, &(struct qir_function){op->which, op->low, op->high});
  }
  for (size_t i = 0; i < how->constants; ++i)
    for (size_t j = 0; j < CHUNK; ++j) v->constants[i][j] = how->constant[i];
  const size_t tasks = (how->size + TASK * CHUNK - 1) / (TASK * CHUNK);
  *step = (struct qir_step){run, v, (long)tasks, how->ops * CHUNK * sizeof(float)};
  return 1;
}
