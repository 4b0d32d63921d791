/* Products of 8-bit integers: convolutions of all kinds, matrices, and what follows their sums. */

#include <math.h>

#include "conv/conv.h"
#include "depthwise/depthwise.h"
#include "grouped/grouped.h"
#include "matmul/matmul.h"
#include "twins.h"

struct convolution {
  struct qir_conv_shape s;
  struct qir_conv_operands o;
  struct qir_epilogue epilogue;
  struct qir_dynamic dynamic;
};

static struct qir_code any_code(void) {
  struct qir_code code = {.flip = one_in(2) ? 0x80 : 0};
  const int32_t low = -code.flip, high = low + 255;
  code.low = one_in(3) ? low + (int32_t)below(100) : low;
  code.high = one_in(3) ? high - (int32_t)below(100) : high;
  code.zero = low + (int32_t)below(256);
  return code;
}

/* Most results are spread over the codes; some multipliers are of a kind that none should be. */
static const float *any_multipliers(size_t n, size_t k) {
  float *x = guarded(n * sizeof *x);
  const int odd = one_in(5);
  const float scale = 1 / (60 * sqrtf((float)k + 1)) * (one_in(4) ? 0.02f : 1);
  const float others[] = {NAN, INFINITY, -1e-3f, 1e30f, 0, 0x1p-140f, 1.5f, -INFINITY};
  const float half = one_in(4) ? ldexpf(1, -(int)between(3, 7)) : 0; /* results are ties */
  for (size_t i = 0; i < n; ++i)
    x[i] = odd && one_in(3) ? others[below(8)] : half != 0 ? half : scale * real(0.1f, 1);
  return x;
}

static void any_epilogue(struct qir_epilogue *e, size_t columns, size_t k) {
  *e = (struct qir_epilogue){.factor = any_multipliers(columns, k), .unit = 1, .summand = -1};
  const int kind = (int)below(4); /* fbgemm's, oneDNN's, and any two */
  if (kind != 1) e->steps = guarded_floats(columns, 500);
  if (kind != 1 && one_in(2)) e->share = guarded_floats(columns, 2);
  if (kind != 0) e->bias = guarded_floats(columns, 3);
  e->last = kind == 0 ? 1 : real(0.5f, 20);
  if (kind != 0) e->unit = real(0.5f, 2);
  if (kind == 1) e->shifted = one_in(2);
  e->code = any_code();
  e->offset = real(-50, 50);
  if (kind < 2) return;
  e->bias_fused = one_in(2);
  e->summand = one_in(2) ? 2 : -1;
  e->summand_fused = one_in(2);
  e->summand_flip = one_in(2) ? 0x80 : 0;
  e->summand_zero = (int32_t)below(256) - e->summand_flip;
  e->summand_most = 255 - e->summand_flip - (int32_t)below(3);
  e->summand_scale = real(0.001f, 0.1f);
  e->bounded = one_in(2);
  e->least = 0;
  e->most = real(1, 6);
  e->divide = one_in(2);
  e->to_float = one_in(2);
}

static const int32_t *any_words(size_t n, int32_t least, int32_t most) {
  int32_t *x = guarded(n * sizeof *x);
  for (size_t i = 0; i < n; ++i) x[i] = least + (int32_t)below((size_t)most - (size_t)least + 1);
  return x;
}

/* Multipliers of 31 bits in place of floats. */
static void fix(struct qir_epilogue *e, size_t columns) {
  e->summand = -1;
  e->to_float = 0;
  e->fixed = any_words(columns, 1 << 30, INT32_MAX);
  const int32_t least = one_in(4) ? -30 : -12; /* drawn in this order on any processor */
  const int32_t most = one_in(4) ? 30 : -4;
  e->shift = any_words(columns, least, most);
  e->away = any_words(columns, 0, 1);
  e->once = one_in(3);
}

/* A window, and images that have room for it. */
static void any_shape(struct qir_conv_shape *s, size_t largest) {
  s->n = between(1, 2);
  s->kh = between(1, largest);
  s->kw = one_in(3) ? between(1, largest) : s->kh;
  s->sh = between(1, 2);
  s->sw = one_in(3) ? between(1, 3) : s->sh;
  s->dh = one_in(4) ? 2 : 1;
  s->dw = one_in(4) ? 2 : 1;
  s->pt = below(s->kh);
  s->pl = below(s->kw);
  const size_t down = (s->kh - 1) * s->dh + 1, across = (s->kw - 1) * s->dw + 1;
  const size_t bottom = s->pt + below(2), right = s->pl + below(2);
  s->h = between(down, down + 6);
  s->w = between(across, across + 9);
  s->oh = (s->h + s->pt + bottom - down) / s->sh + 1;
  s->ow = (s->w + s->pl + right - across) / s->sw + 1;
}

static void any_operands(struct convolution *c) {
  const size_t taps = c->s.kh * c->s.kw, cg = c->s.c / c->s.groups;
  struct qir_conv_operands *o = &c->o;
  o->x = 0;
  o->y = 1;
  o->weight = guarded_bytes(c->s.oc * cg * taps);
  o->bias = one_in(4) ? NULL : guarded_words(c->s.oc, one_in(5) ? INT32_MAX : 5000);
  o->offset = one_in(4) ? guarded_words(c->s.oc, 128) : NULL;
  o->multiplier_count = one_in(2) ? 1 : c->s.oc;
  o->multiplier = any_multipliers(o->multiplier_count, taps * cg);
  o->x_flip = one_in(2) ? 0x80 : 0;
  o->x_zero = (int32_t)below(256) - o->x_flip;
  o->code = any_code();
  o->to_float = one_in(3);
  if (one_in(3)) {
    any_epilogue(&c->epilogue, c->s.oc, taps * cg);
    o->epilogue = &c->epilogue;
    if (one_in(3)) {
      o->bias = one_in(4) ? NULL : guarded_words(c->s.oc, 5000);
      fix(&c->epilogue, c->s.oc);
      static const float one = 1; /* sums are whole */
      o->multiplier_count = 1;
      o->multiplier = &one;
    }
  }
}

static int make_convolution(uint32_t isa, const void *how, struct qir_step *step) {
  const struct convolution *c = how;
  if (!c->o.offset && qir_grouped_fits(isa, &c->s))
    return qir_grouped_make(isa, &c->s, &c->o, step);
  return qir_conv_make(isa, &c->s, &c->o, step);
}

static int make_depthwise(uint32_t isa, const void *how, struct qir_step *step) {
  const struct convolution *c = how;
  return qir_depthwise_make(isa, &c->s, &c->o, step);
}

static int make_dynamic(uint32_t isa, const void *how, struct qir_step *step) {
  const struct convolution *c = how;
  return qir_dynamic_conv_make(isa, &c->s, &c->o, &c->dynamic, step);
}

static void compare_convolutions(struct convolution *c, make_fn make) {
  const struct qir_conv_shape *s = &c->s;
  const int to_float = c->o.epilogue ? c->epilogue.to_float : c->o.to_float;
  const size_t size = s->n * s->oh * s->ow * s->oc, bytes = size * (to_float ? 4 : 1);
  describe(
      "%zux%zux%zux%zu to %zux%zux%zu, window %zux%zu, stride %zux%zu, dilation %zux%zu, "
      "padding %zu %zu, groups %zu, flip %d, zero %d, offset %d, float %d, epilogue %d, pairs %d",
      s->n, s->h, s->w, s->c, s->oh, s->ow, s->oc, s->kh, s->kw, s->sh, s->sw, s->dh, s->dw, s->pt,
      s->pl, s->groups, c->o.x_flip, c->o.x_zero, c->o.offset != NULL, to_float,
      c->o.epilogue != NULL, c->o.pairs);
  compare(&(struct twins){.make = make,
                          .how = c,
                          .buffers = {guarded_bytes(s->n * s->h * s->w * s->c), guarded(bytes),
                                      c->o.epilogue ? guarded_bytes(size) : NULL},
                          .y = 1,
                          .bytes = bytes,
                          .item = to_float ? 4 : 0});
}

void convolutions(void) {
  struct convolution c = {0};
  any_shape(&c.s, one_in(3) ? 1 : 3);
  c.s.groups = one_in(8) ? 2 : 1;
  c.s.c = (one_in(2) ? between(1, 21) : 4 * between(1, 20)) * c.s.groups;
  c.s.oc = between(1, one_in(2) ? 9 : 37) * c.s.groups;
  any_operands(&c);
  compare_convolutions(&c, make_convolution);
}

void depthwise(void) {
  struct convolution c = {0};
  any_shape(&c.s, 5);
  if (one_in(2)) { /* windows that slide */
    const size_t square = one_in(2) ? 3 : 5;
    c.s.kh = c.s.kw = square;
    c.s.dh = c.s.dw = 1;
    c.s.sh = c.s.sw = between(1, 2);
    c.s.pt = c.s.pl = below(square / 2 + 1);
    c.s.h = between(square, 9);
    c.s.w = between(square, 15);
    c.s.oh = (c.s.h + 2 * c.s.pt - square) / c.s.sh + 1;
    c.s.ow = (c.s.w + 2 * c.s.pl - square) / c.s.sw + 1;
  }
  c.s.c = c.s.oc = c.s.groups = between(1, 70);
  any_operands(&c);
  c.o.pairs = !c.o.offset && one_in(3);
  compare_convolutions(&c, make_depthwise);
}

void groups(void) {
  struct convolution c = {0};
  any_shape(&c.s, 3);
  c.s.groups = between(2, 9);
  c.s.c = c.s.oc = c.s.groups * (one_in(3) ? between(2, 4) : 4 * between(1, 5));
  any_operands(&c);
  compare_convolutions(&c, make_convolution);
}

void dynamic(void) {
  struct convolution c = {.s = {.h = 1, .w = 1, .oh = 1, .ow = 1, .groups = 1}};
  c.s.n = between(1, 30);
  c.s.c = between(1, 70);
  c.s.oc = between(1, 40);
  c.s.kh = c.s.kw = c.s.sh = c.s.sw = c.s.dh = c.s.dw = 1;
  any_operands(&c);
  c.o.epilogue = NULL;
  c.o.to_float = 1;
  c.dynamic = (struct qir_dynamic){.zero = one_in(3) ? -1 : 2, .scale = 3};
  c.dynamic.count = one_in(2) ? 1 : c.s.oc;
  c.dynamic.plus = one_in(2) ? NULL : guarded_floats(c.s.oc, 1);
  if (c.dynamic.zero >= 0) c.o.x_zero = 0;
  describe("%zux%zu by %zu, flip %d, zero in buffer %d, plus %d", c.s.n, c.s.c, c.s.oc, c.o.x_flip,
           c.dynamic.zero, c.dynamic.plus != NULL);
  const size_t bytes = c.s.n * c.s.oc * sizeof(float);
  compare(
      &(struct twins){.make = make_dynamic,
                      .how = &c,
                      .buffers = {guarded_bytes(c.s.n * c.s.c), guarded(bytes), guarded_bytes(1),
                                  (void *)any_multipliers(c.dynamic.count, c.s.c)},
                      .y = 1,
                      .bytes = bytes,
                      .item = 4});
}

struct matrix {
  struct qir_matmul_shape s;
  struct qir_matmul_operands o;
};

static int make_matrix(uint32_t isa, const void *how, struct qir_step *step) {
  const struct matrix *m = how;
  return qir_matmul_make(isa, &m->s, &m->o, step);
}

void matrices(void) {
  struct matrix v = {0};
  struct qir_matmul_shape *s = &v.s;
  size_t a_at[3], b_at[3], y_at[3];
  s->batches = between(1, 3);
  s->m = between(1, 20);
  s->k = between(1, one_in(2) ? 20 : 80);
  s->n = between(1, 40);
  const int turned = one_in(2);
  s->a_row = s->k + below(3);
  s->b_value = turned ? 1 : s->n + below(3);
  s->b_column = turned ? s->k + below(3) : 1;
  s->y_row = s->n + below(3);
  for (size_t t = 0; t < s->batches; ++t) {
    a_at[t] = t * s->m * s->a_row;
    b_at[t] = t * (turned ? s->n * s->b_column : s->k * s->b_value);
    y_at[t] = t * s->m * s->y_row;
  }
  s->a_at = a_at;
  s->b_at = b_at;
  s->y_at = y_at;
  s->a_end = s->batches * s->m * s->a_row;
  v.o = (struct qir_matmul_operands){.a = 0, .b = 1, .y = 2, .to_float = one_in(3)};
  v.o.a_flip = one_in(2) ? 0x80 : 0;
  v.o.b_flip = one_in(2) ? 0x80 : 0;
  v.o.a_zero = (int32_t)below(256) - v.o.a_flip;
  v.o.b_zero = (int32_t)below(256) - v.o.b_flip;
  v.o.multiplier = *any_multipliers(1, s->k);
  v.o.code = any_code();
  describe("%zu times %zux%zu by %zu, turned %d, flips %d %d, zeros %d %d, float %d", s->batches,
           s->m, s->k, s->n, turned, v.o.a_flip, v.o.b_flip, v.o.a_zero, v.o.b_zero, v.o.to_float);
  const size_t all = s->batches * (turned ? s->n * s->b_column : s->k * s->b_value);
  const size_t bytes = s->batches * s->m * s->y_row * (v.o.to_float ? 4 : 1);
  compare(&(struct twins){.make = make_matrix,
                          .how = &v,
                          .buffers = {guarded_bytes(s->a_end), guarded_bytes(all), guarded(bytes)},
                          .y = 2,
                          .bytes = bytes,
                          .item = v.o.to_float ? 4 : 0});
}
