/* What is done to each number by itself: sums, products, tables, quantize and dequantize. */

#include "elementwise/elementwise.h"
#include "twins.h"

struct elements {
  int which; /* real: four of them, then add, mul, whole, lookup, quantize, dequantize */
  struct qir_binary_shape shape;
  struct qir_binary op;
  struct qir_affine affine;
  struct qir_planes planes;
  const uint8_t *table;
  size_t size, entry;
};

enum { ADD = 4, MUL, WHOLE, LOOKUP, QUANTIZE, DEQUANTIZE };

static int make(uint32_t isa, const void *how, struct qir_step *step) {
  const struct elements *e = how;
  switch (e->which) {
    case ADD: return qir_add_make(isa, &e->shape, &e->op, 0, 1, 2, step);
    case MUL: return qir_mul_make(isa, &e->shape, &e->op, 0, 1, 2, step);
    case WHOLE: return qir_whole_make(isa, &e->shape, &e->op, 0, 1, 2, step);
    case LOOKUP: return qir_lookup_make(isa, e->size, e->table, e->entry, 0, 2, step);
    case QUANTIZE: return qir_quantize_make(isa, &e->planes, &e->affine, 0, 2, step);
    case DEQUANTIZE: return qir_dequantize_make(isa, &e->planes, &e->affine, 0, 2, step);
    default: return qir_real_make(isa, (enum qir_real)e->which, &e->shape, 0, 1, 2, step);
  }
}

static struct qir_code any_code(void) {
  struct qir_code code = {.flip = one_in(2) ? 0x80 : 0};
  code.low = -code.flip + (one_in(3) ? (int32_t)below(100) : 0);
  code.high = -code.flip + 255 - (one_in(3) ? (int32_t)below(100) : 0);
  code.zero = -code.flip + (int32_t)below(256);
  return code;
}

static void compare_elements(struct elements *e, void *a, void *b, size_t bytes, size_t item) {
  struct twins t = {.make = make, .how = e, .buffers = {a, b, guarded(bytes)}, .y = 2};
  t.bytes = bytes;
  t.item = item;
  compare(&t);
}

void elements(void) {
  struct elements e = {.which = (int)below(7)};
  struct qir_binary_shape *s = &e.shape;
  s->outer = between(1, 3);
  s->rows = between(1, 7);
  s->inner = one_in(2) ? between(1, 40) : between(100, 300);
  if (one_in(3)) s->a_shared = 1;
  if (!s->a_shared && one_in(3)) s->b_shared = 1;
  const float scale = one_in(8) ? 1e9f : 1;
  e.op = (struct qir_binary){
      .a_gain = real(-1, 1) * scale,
      .b_gain = real(-1, 1) * scale,
      .offset = real(-100, 100),
      .a_zero = (int32_t)below(256),
      .b_zero = (int32_t)below(256),
      .multiplier = real(0.0001f, 0.02f) * scale,
      .zero = real(-100, 100),
      .a_factor = (int32_t)below(1 << 22) - (1 << 21),
      .b_factor = (int32_t)below(1 << 22) - (1 << 21),
      .whole_offset = (int32_t)below(1 << 28) - (1 << 27),
      .shift = (int32_t)below(29),
      .a_flip = one_in(2) ? 0x80 : 0,
      .b_flip = one_in(2) ? 0x80 : 0,
      .code = any_code(),
  };
  if (e.which != WHOLE && (e.which != MUL || one_in(2))) e.op.code.zero = 0;
  describe("operation %d of %zux%zux%zu, shared %d %d", e.which, s->outer, s->rows, s->inner,
           s->a_shared, s->b_shared);
  const size_t one = s->outer * s->inner, all = one * s->rows;
  const size_t a = s->a_shared ? one : all, b = s->b_shared ? one : all;
  const int floats = e.which < ADD;
  void *left = floats ? (void *)guarded_floats(a, 100) : guarded_bytes(a);
  void *right = floats ? (void *)guarded_floats(b, 100) : guarded_bytes(b);
  compare_elements(&e, left, right, floats ? all * 4 : all, floats ? 4 : 0);
}

void tables(void) {
  struct elements e = {.which = LOOKUP, .size = between(1, 300), .entry = (size_t)1 << below(4)};
  if (one_in(2)) e.entry = 1;
  e.table = guarded_bytes(256 * e.entry);
  describe("%zu entries of %zu bytes", e.size, e.entry);
  compare_elements(&e, guarded_bytes(e.size), NULL, e.size * e.entry, 0);
}

void codes_of_floats(void) {
  struct elements e = {.which = one_in(2) ? QUANTIZE : DEQUANTIZE, .affine = {.code = any_code()}};
  e.affine.scale = one_in(8) ? 0x1p-130f : real(0.01f, 2);
  e.planes = (struct qir_planes){between(1, 2), between(1, 5), between(1, 200)};
  const size_t size = e.planes.n * e.planes.channels * e.planes.pixels;
  describe("%s %zux%zux%zu", e.which == QUANTIZE ? "quantize" : "dequantize", e.planes.n,
           e.planes.channels, e.planes.pixels);
  if (e.which == QUANTIZE)
    compare_elements(&e, guarded_floats(size, 200), NULL, size, 0);
  else
    compare_elements(&e, guarded_bytes(size), NULL, size * 4, 4);
}
