#include "elementwise.h"

#include <string.h>

#include "layout/layout.h"

#define QIR_BINARY(function) \
  void function(const struct qir_binary *, const uint8_t *, const uint8_t *, uint8_t *, size_t);
#define QIR_ELEMENTWISE_KERNEL(name, isa)                                                     \
  QIR_BINARY(qir_elementwise_add_##name)                                                      \
  QIR_BINARY(qir_elementwise_mul_##name)                                                      \
  QIR_BINARY(qir_elementwise_whole_##name)                                                    \
  QIR_BINARY(qir_elementwise_real_add_##name)                                                 \
  QIR_BINARY(qir_elementwise_real_sub_##name)                                                 \
  QIR_BINARY(qir_elementwise_real_mul_##name)                                                 \
  QIR_BINARY(qir_elementwise_real_div_##name)                                                 \
  void qir_elementwise_quantize_##name(const struct qir_affine *, const float *, uint8_t *,   \
                                       size_t);                                               \
  void qir_elementwise_dequantize_##name(const struct qir_affine *, const uint8_t *, float *, \
                                         size_t);                                             \
  void qir_elementwise_lookup_##name(const uint8_t *, const uint8_t *, uint8_t *, size_t);    \
  void qir_elementwise_interleave3_##name(const uint8_t *, size_t, uint8_t *);
#include "kernels.inc"
#undef QIR_ELEMENTWISE_KERNEL

#define QIR_ELEMENTWISE_KERNEL(name_, isa_)                                      \
  {.name = "qir_elementwise_" #name_,                                            \
   .isa = isa_,                                                                  \
   .add = qir_elementwise_add_##name_,                                           \
   .mul = qir_elementwise_mul_##name_,                                           \
   .whole = qir_elementwise_whole_##name_,                                       \
   .real = {qir_elementwise_real_add_##name_, qir_elementwise_real_sub_##name_,  \
            qir_elementwise_real_mul_##name_, qir_elementwise_real_div_##name_}, \
   .quantize = qir_elementwise_quantize_##name_,                                 \
   .dequantize = qir_elementwise_dequantize_##name_,                             \
   .lookup = qir_elementwise_lookup_##name_,                                     \
   .interleave3 = qir_elementwise_interleave3_##name_},
const struct qir_elementwise_kernel qir_elementwise_kernels[] = {
#include "kernels.inc"
};
#undef QIR_ELEMENTWISE_KERNEL
const size_t qir_elementwise_kernel_count =
    sizeof qir_elementwise_kernels / sizeof *qir_elementwise_kernels;

enum { CHUNK = 32 * 1024 /* elements of a task */, REPEATED = 4 * 1024 /* of a shared operand */ };

/* How many of those that are left a task takes. */
static size_t taken(size_t left, size_t chunk) {
#if defined(QIR_FAULT_TAIL_ELEMENTWISE) /* never in a build to use, as in gemm.c */
  if (left < chunk) return left - 1;
#endif
  return left < chunk ? left : chunk;
}

/* ---- two operands ---- */

struct binary {
  qir_binary_fn fn;
  struct qir_binary op;
  struct qir_binary_shape s;
  size_t size; /* bytes of an element */
  int a, b, y;
  size_t per_task; /* rows */
  size_t copies;   /* of a shared operand, which one call takes */
};

/* Copies of one run of bytes, one after the other; the copies double. */
static const uint8_t *repeat(const uint8_t *x, size_t size, size_t copies, uint8_t *to) {
  memcpy(to, x, size);
  for (size_t done = 1; done < copies; done *= 2)
    memcpy(to + done * size, to, (copies - done < done ? copies - done : done) * size);
  return to;
}

/* A shared operand that is short is repeated, so that a call does many rows. */
static void run_binary(const void *params, void *const *buffers, void *scratch, long task) {
  const struct binary *v = params;
  const size_t inner = v->s.inner, line = inner * v->size, all = v->s.outer * v->s.rows;
  const size_t first = (size_t)task * v->per_task;
  const size_t end = first + v->per_task < all ? first + v->per_task : all;
  const uint8_t *a = buffers[v->a], *b = buffers[v->b];
  uint8_t *y = buffers[v->y];
  for (size_t row = first; row < end;) {
    const size_t shared = row / v->s.rows, last = (shared + 1) * v->s.rows;
    const size_t stop = last < end ? last : end;
    const size_t copies = stop - row < v->copies ? stop - row : v->copies;
    const uint8_t *one = (v->s.a_shared ? a : b) + shared * line;
    if (copies > 1) one = repeat(one, line, copies, scratch);
    while (row < stop) {
      const size_t count = stop - row < copies ? stop - row : copies;
      v->fn(&v->op, v->s.a_shared ? one : a + row * line, v->s.b_shared ? one : b + row * line,
            y + row * line, count * inner);
      row += count;
    }
  }
}

/* Without a shared operand all is one sequence, of tasks of one length and a shorter last one. */
static void run_sequence(const void *params, void *const *buffers, void *scratch, long task) {
  (void)scratch;
  const struct binary *v = params;
  const size_t first = (size_t)task * CHUNK, at = first * v->size;
  v->fn(&v->op, (uint8_t *)buffers[v->a] + at, (uint8_t *)buffers[v->b] + at,
        (uint8_t *)buffers[v->y] + at, taken(v->s.inner - first, CHUNK));
}

static int make_binary(qir_binary_fn fn, size_t size, const struct qir_binary_shape *shape,
                       const struct qir_binary *op, int a, int b, int y, struct qir_step *step) {
  struct binary *v = qir_step_alloc(sizeof *v);
  if (!v) return 0;
  *v = (struct binary){.fn = fn, .s = *shape, .size = size, .a = a, .b = b, .y = y};
  if (op) v->op = *op;
  step->params = v;
  step->scratch = 0;
  if (!shape->a_shared && !shape->b_shared) {
    v->s.inner = shape->outer * shape->rows * shape->inner;
    step->run = run_sequence;
    step->tasks = (long)((v->s.inner + CHUNK - 1) / CHUNK);
    return 1;
  }
  const size_t inner = shape->inner ? shape->inner : 1, fit = REPEATED / (inner * size);
  v->per_task = CHUNK / inner + 1;
  v->copies = fit < 1 ? 1 : fit < shape->rows ? fit : shape->rows;
  step->run = run_binary;
  step->scratch = v->copies > 1 ? qir_round_up(v->copies * inner * size, 64) : 0;
  step->tasks = (long)((shape->outer * shape->rows + v->per_task - 1) / v->per_task);
  return 1;
}

int qir_add_make(uint32_t isa, const struct qir_binary_shape *shape, const struct qir_binary *op,
                 int a, int b, int y, struct qir_step *step) {
  return make_binary(QIR_SELECT(qir_elementwise_kernels, isa)->add, 1, shape, op, a, b, y, step);
}

int qir_mul_make(uint32_t isa, const struct qir_binary_shape *shape, const struct qir_binary *op,
                 int a, int b, int y, struct qir_step *step) {
  return make_binary(QIR_SELECT(qir_elementwise_kernels, isa)->mul, 1, shape, op, a, b, y, step);
}

int qir_whole_make(uint32_t isa, const struct qir_binary_shape *shape, const struct qir_binary *op,
                   int a, int b, int y, struct qir_step *step) {
  return make_binary(QIR_SELECT(qir_elementwise_kernels, isa)->whole, 1, shape, op, a, b, y, step);
}

int qir_real_make(uint32_t isa, enum qir_real op, const struct qir_binary_shape *shape, int a,
                  int b, int y, struct qir_step *step) {
  const struct qir_elementwise_kernel *kernel = QIR_SELECT(qir_elementwise_kernels, isa);
  return make_binary(kernel->real[op], sizeof(float), shape, NULL, a, b, y, step);
}

/* ---- lookup ---- */

struct lookup {
  qir_lookup_fn fn; /* of entries of one byte */
  size_t size, entry;
  int x, y;
  uint8_t table[]; /* 256 entries */
};

/* Entries of other sizes are copied as integers of that size. */
#define SPREAD(type)                                          \
  {                                                           \
    const type *restrict entries = (const type *)v->table;    \
    type *restrict to = (type *)buffers[v->y] + at;           \
    for (size_t i = 0; i < count; ++i) to[i] = entries[x[i]]; \
    break;                                                    \
  }

static void run_lookup(const void *params, void *const *buffers, void *scratch, long task) {
  (void)scratch;
  const struct lookup *v = params;
  const size_t at = (size_t)task * CHUNK, count = taken(v->size - at, CHUNK);
  const uint8_t *restrict x = (const uint8_t *)buffers[v->x] + at;
  switch (v->entry) {
    case 2: SPREAD(uint16_t)
    case 4: SPREAD(uint32_t)
    case 8: SPREAD(uint64_t)
    default: v->fn(v->table, x, (uint8_t *)buffers[v->y] + at, count);
  }
}

int qir_lookup_make(uint32_t isa, size_t size, const void *table, size_t entry, int x, int y,
                    struct qir_step *step) {
  struct lookup *v = qir_step_alloc(sizeof *v + 256 * entry);
  if (!v) return 0;
  *v = (struct lookup){.fn = QIR_SELECT(qir_elementwise_kernels, isa)->lookup,
                       .size = size,
                       .entry = entry,
                       .x = x,
                       .y = y};
  memcpy(v->table, table, 256 * entry);
  *step = (struct qir_step){run_lookup, v, (long)((size + CHUNK - 1) / CHUNK), 0};
  return 1;
}

/* ---- floats to codes and back ---- */

struct planes {
  const struct qir_elementwise_kernel *kernel;
  struct qir_affine affine;
  struct qir_planes s;
  int x, y;
  size_t chunk, chunks; /* pixels of a task, tasks of one of the n */
};

static void run_quantize(const void *params, void *const *buffers, void *scratch, long task) {
  const struct planes *v = params;
  const size_t n = (size_t)task / v->chunks, first = (size_t)task % v->chunks * v->chunk;
  const size_t count = taken(v->s.pixels - first, v->chunk);
  const float *x = (const float *)buffers[v->x] + n * v->s.channels * v->s.pixels + first;
  uint8_t *y = (uint8_t *)buffers[v->y] + (n * v->s.pixels + first) * v->s.channels;
  if (v->s.channels == 1) {
    v->kernel->quantize(&v->affine, x, y, count);
    return;
  }
  uint8_t *codes = scratch;
  for (size_t c = 0; c < v->s.channels; ++c)
    v->kernel->quantize(&v->affine, x + c * v->s.pixels, codes + c * count, count);
  if (v->s.channels == 3) /* pictures */
    v->kernel->interleave3(codes, count, y);
  else
    qir_transpose_bytes(codes, v->s.channels, count, y);
}

static void run_dequantize(const void *params, void *const *buffers, void *scratch, long task) {
  const struct planes *v = params;
  const size_t n = (size_t)task / v->chunks, first = (size_t)task % v->chunks * v->chunk;
  const size_t count = taken(v->s.pixels - first, v->chunk);
  const uint8_t *x = (const uint8_t *)buffers[v->x] + (n * v->s.pixels + first) * v->s.channels;
  float *y = (float *)buffers[v->y] + n * v->s.channels * v->s.pixels + first;
  if (v->s.channels == 1) {
    v->kernel->dequantize(&v->affine, x, y, count);
    return;
  }
  uint8_t *codes = scratch;
  qir_transpose_bytes(x, count, v->s.channels, codes);
  for (size_t c = 0; c < v->s.channels; ++c)
    v->kernel->dequantize(&v->affine, codes + c * count, y + c * v->s.pixels, count);
}

static int make_planes(uint32_t isa, const struct qir_planes *planes,
                       const struct qir_affine *affine, int x, int y, struct qir_step *step) {
  struct planes *v = qir_step_alloc(sizeof *v);
  if (!v) return 0;
  *v = (struct planes){.kernel = QIR_SELECT(qir_elementwise_kernels, isa),
                       .affine = *affine,
                       .s = *planes,
                       .x = x,
                       .y = y};
  v->chunk = CHUNK / 2 / (planes->channels ? planes->channels : 1);
  if (v->chunk < 64) v->chunk = 64;
  v->chunks = (planes->pixels + v->chunk - 1) / v->chunk;
  step->params = v;
  step->tasks = (long)(planes->n * v->chunks);
  step->scratch = planes->channels == 1 ? 0 : qir_round_up(v->chunk * planes->channels, 64);
  return 1;
}

int qir_quantize_make(uint32_t isa, const struct qir_planes *planes, const struct qir_affine *to,
                      int x, int y, struct qir_step *step) {
  step->run = run_quantize;
  return make_planes(isa, planes, to, x, y, step);
}

int qir_dequantize_make(uint32_t isa, const struct qir_planes *planes,
                        const struct qir_affine *from, int x, int y, struct qir_step *step) {
  step->run = run_dequantize;
  return make_planes(isa, planes, from, x, y, step);
}
