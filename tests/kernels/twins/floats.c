/* Products of float32, whose order of sums is documented, and functions of float32. */

#include "floats/channels_last.h"
#include "floats/product.h"
#include "floats/unary.h"
#include "twins.h"

static struct qir_bounds any_bounds(void) {
  return (struct qir_bounds){.bounded = one_in(2), .low = one_in(2) ? 0 : -1, .high = 6};
}

/* ---- matrices ---- */

static int make_linear(uint32_t isa, const void *how, struct qir_step *step) {
  return qir_float_linear_make(isa, how, step);
}

static int make_matmul(uint32_t isa, const void *how, struct qir_step *step) {
  return qir_float_matmul_make(isa, how, step);
}

static void linear(void) {
  struct qir_float_linear v = {.rows = between(1, 20), .k = between(1, 40), .n = between(1, 40)};
  if (one_in(6)) v.k = between(250, 530); /* blocks of a sum */
  v.weight = guarded_floats(v.n * v.k, 1);
  v.bias = one_in(3) ? NULL : guarded_floats(v.n, 1);
  v.bounds = any_bounds();
  v.x = 0;
  v.y = 1;
  describe("linear %zux%zu by %zu", v.rows, v.k, v.n);
  const size_t bytes = v.rows * v.n * sizeof(float);
  compare(&(struct twins){.make = make_linear,
                          .how = &v,
                          .buffers = {guarded_floats(v.rows * v.k, 1), guarded(bytes)},
                          .y = 1,
                          .bytes = bytes,
                          .item = 4});
}

void float_products(void) {
  if (one_in(2)) {
    linear();
    return;
  }
  struct qir_float_matmul v = {.s = {.batches = 1}, .a = 0, .b = 1, .y = 2};
  struct qir_matmul_shape *s = &v.s;
  const size_t at = 0;
  s->m = between(1, 20);
  s->k = one_in(6) ? between(250, 530) : between(1, 40);
  s->n = between(1, 40);
  const int turned = one_in(2);
  s->a_row = s->k + below(3);
  s->b_value = turned ? 1 : s->n + below(3);
  s->b_column = turned ? s->k + below(3) : 1;
  s->y_row = s->n;
  s->a_at = s->b_at = s->y_at = &at;
  s->a_end = s->m * s->a_row;
  describe("matmul %zux%zu by %zu, turned %d", s->m, s->k, s->n, turned);
  const size_t all = turned ? s->n * s->b_column : s->k * s->b_value;
  const size_t bytes = s->m * s->n * sizeof(float);
  compare(&(struct twins){
      .make = make_matmul,
      .how = &v,
      .buffers = {guarded_floats(s->a_end, 1), guarded_floats(all, 1), guarded(bytes)},
      .y = 2,
      .bytes = bytes,
      .item = 4});
}

/* ---- convolutions ---- */

struct convolution {
  struct qir_float_conv first; /* of images channels first, */
  struct qir_last_conv last;   /* and channels last */
  int is_last, depthwise;
};

static int make_convolution(uint32_t isa, const void *how, struct qir_step *step) {
  const struct convolution *v = how;
  if (v->is_last)
    return v->depthwise ? qir_last_depthwise_make(isa, &v->last, step)
                        : qir_last_conv_make(isa, &v->last, step);
  return v->depthwise ? qir_float_depthwise_make(isa, &v->first, step)
                      : qir_float_conv_make(isa, &v->first, step);
}

static struct qir_conv_shape any_shape(int depthwise) {
  struct qir_conv_shape s = {.n = between(1, 2), .kh = between(1, 3)};
  s.kw = one_in(3) ? between(1, 3) : s.kh;
  if (one_in(3)) s.kh = s.kw = 5;
  s.sh = s.sw = between(1, 2);
  if (one_in(5)) s.sw = 3;
  s.dh = s.dw = one_in(6) ? 2 : 1;
  s.pt = below(s.kh);
  s.pl = below(s.kw);
  const size_t down = (s.kh - 1) * s.dh + 1, across = (s.kw - 1) * s.dw + 1;
  s.h = between(down, down + 7);
  s.w = between(across, across + 14);
  s.oh = (s.h + 2 * s.pt - down) / s.sh + 1;
  s.ow = (s.w + 2 * s.pl - across) / s.sw + 1;
  s.groups = 1;
  s.c = between(1, 9);
  s.oc = between(1, 20);
  if (depthwise) s.c = s.oc = s.groups = between(1, 21);
  return s;
}

void float_convolutions(void) {
  struct convolution v = {.is_last = one_in(2), .depthwise = one_in(2)};
  const struct qir_conv_shape s = any_shape(v.depthwise);
  const size_t weights = s.oc * (s.c / s.groups) * s.kh * s.kw;
  float *weight = guarded_floats(weights, 1);
  const float *bias = one_in(3) ? NULL : guarded_floats(s.oc, 1);
  const struct qir_bounds bounds = any_bounds();
  v.first = (struct qir_float_conv){
      .s = s, .bias = bias, .constant = one_in(2) ? weight : NULL, .bounds = bounds, .weight = 1};
  v.first.y = 2;
  v.last = (struct qir_last_conv){
      .s = s, .weight = weight, .bias = bias, .after = {.op = -1, .added = -1, .bounds = bounds}};
  v.last.y = 2;
  describe(
      "%s, depthwise %d, %zux%zux%zux%zu to %zux%zux%zu, window %zux%zu, stride %zux%zu, "
      "dilation %zu, padding %zu %zu",
      v.is_last ? "channels last" : "channels first", v.depthwise, s.n, s.h, s.w, s.c, s.oh, s.ow,
      s.oc, s.kh, s.kw, s.sh, s.sw, s.dh, s.pt, s.pl);
  const size_t bytes = s.n * s.oh * s.ow * s.oc * sizeof(float);
  compare(
      &(struct twins){.make = make_convolution,
                      .how = &v,
                      .buffers = {guarded_floats(s.n * s.h * s.w * s.c, 1), weight, guarded(bytes)},
                      .y = 2,
                      .bytes = bytes,
                      .item = 4});
}

/* ---- functions ---- */

struct function {
  int op;
  struct qir_unary how;
  struct qir_channel channel;
  size_t outer, size;
};

enum { MEAN = QIR_UNARY_OPS, LAST_MEAN, NORMALIZE, KINDS };

static int make_function(uint32_t isa, const void *how, struct qir_step *step) {
  const struct function *v = how;
  switch (v->op) {
    case MEAN: return qir_float_mean_make(isa, v->outer, v->size, 0, 1, step);
    case LAST_MEAN: return qir_last_mean_make(isa, 1, v->outer, v->size, 0, 1, step);
    case NORMALIZE:
      return qir_float_batch_norm_make(isa, v->outer, 1, v->size, &v->channel, 0, 1, step);
    default:
      return qir_float_unary_make(isa, (enum qir_unary_op)v->op, &v->how, v->outer * v->size, 0, 1,
                                  step);
  }
}

void float_functions(void) {
  struct function v = {.op = (int)below(KINDS), .outer = between(1, 9), .size = between(1, 80)};
  v.how = (struct qir_unary){(double)real(-1, 0), (double)real(0, 2)};
  v.channel = (struct qir_channel){(double)real(-1, 1), (double)real(-2, 2), (double)real(-1, 1)};
  describe("function %d of %zux%zu", v.op, v.outer, v.size);
  const size_t results = v.op == MEAN ? v.outer : v.op == LAST_MEAN ? v.size : v.outer * v.size;
  compare(&(struct twins){
      .make = make_function,
      .how = &v,
      .buffers = {guarded_floats(v.outer * v.size, one_in(2) ? 5 : 90), guarded(results * 4)},
      .y = 1,
      .bytes = results * 4,
      .item = 4});
}
