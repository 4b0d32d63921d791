/* Steps with one C text for all sets: their bytes are compared between processors. */

#include <math.h>

#include "pooling/pooling.h"
#include "quantizers/quantizers.h"
#include "recurrent/recurrent.h"
#include "resize/resize.h"
#include "rows/rows.h"
#include "softmax/softmax.h"
#include "statistics/tally.h"
#include "sums/sums.h"
#include "tensors/tensors.h"
#include "twins.h"
#include "wide/wide.h"

static struct qir_code any_code(void) {
  struct qir_code code = {.flip = one_in(2) ? 0x80 : 0};
  code.low = -code.flip;
  code.high = code.low + 255;
  code.zero = code.low + (int32_t)below(256);
  return code;
}

static void compare_two(make_fn make, const void *how, void *x, size_t bytes, size_t item) {
  struct twins t = {.make = make, .how = how, .buffers = {x, guarded(bytes)}, .y = 1};
  t.bytes = bytes;
  t.item = item;
  compare(&t);
}

/* ---- pools ---- */

struct pool {
  int which;
  struct qir_window s;
  struct qir_average average;
  struct qir_mean mean;
  struct qir_sums sums;
};

static int make_pool(uint32_t isa, const void *how, struct qir_step *step) {
  const struct pool *v = how;
  const struct qir_window *s = &v->s;
  switch (v->which) {
    case 0: return qir_max_pool_make(isa, s, v->average.x_flip, 0, 1, step);
    case 1: return qir_average_pool_make(isa, s, &v->average, 0, 1, step);
    case 4: return qir_sums_make(isa, &v->sums, step);
    case 2: return qir_global_average_make(isa, s->n, s->h * s->w, s->c, &v->average, 0, 1, step);
    default: return qir_mean_make(isa, s->n, s->h * s->w, s->c, &v->mean, 0, 1, step);
  }
}

/* Sums of windows, and levels that are near a line or are not. */
static void any_levels(struct pool *v) {
  const struct qir_window *s = &v->s;
  const int32_t most = (int32_t)(s->kh * s->kw * 255);
  int32_t *levels = guarded(2 * QIR_LEVELS * sizeof *levels), at = 0;
  uint8_t *kinds = guarded(s->oh * s->ow);
  for (int32_t i = 0; i < 2 * QIR_LEVELS; ++i) {
    if (i % QIR_LEVELS == 0) at = (int32_t)below(9) - 4;
    at += i < QIR_LEVELS ? most / QIR_LEVELS : (int32_t)below((size_t)most / 50 + 1);
    levels[i] = at;
  }
  for (size_t i = 0; i < s->oh * s->ow; ++i) kinds[i] = (uint8_t)below(2);
  v->sums = (struct qir_sums){.n = s->n, .h = s->h, .w = s->w, .c = s->c, .oh = s->oh, .ow = s->ow};
  v->sums.kh = s->kh;
  v->sums.kw = s->kw;
  v->sums.sh = s->sh;
  v->sums.sw = s->sw;
  v->sums.pt = s->pt;
  v->sums.pl = s->pl;
  v->sums.x_flip = v->average.x_flip;
  v->sums.y_flip = v->average.code.flip;
  v->sums.kinds = 2;
  v->sums.levels = levels;
  v->sums.kind = kinds;
  v->sums.y = 1;
}

/* Images between the pixels of others. */
static int make_resize(uint32_t isa, const void *how, struct qir_step *step) {
  return qir_resize_make(isa, how, step);
}

static struct qir_resize_axis any_axis(size_t size, size_t out) {
  int32_t *all = guarded(4 * out * sizeof *all);
  for (size_t i = 0; i < out; ++i) {
    all[i] = (int32_t)below(size);
    all[out + i] = (int32_t)below(size);
    all[2 * out + i] = (int32_t)below(2049);
    all[3 * out + i] = 2048 - all[2 * out + i];
  }
  return (struct qir_resize_axis){all, all + out, all + 2 * out, all + 3 * out};
}

static void resizes(void) {
  struct qir_resize v = {.n = between(1, 2), .c = between(1, 70), .shift = 22, .y = 1};
  v.h = between(1, 5);
  v.w = between(1, 5);
  v.oh = between(1, 6);
  v.ow = between(1, 6);
  v.rows = any_axis(v.h, v.oh);
  v.columns = any_axis(v.w, v.ow);
  v.away = one_in(2);
  v.flip = one_in(2) ? 0x80 : 0;
  describe("resize of %zux%zux%zux%zu to %zux%zu", v.n, v.h, v.w, v.c, v.oh, v.ow);
  compare_two(make_resize, &v, guarded_bytes(v.n * v.h * v.w * v.c), v.n * v.oh * v.ow * v.c, 0);
}

void pools(void) {
  struct pool v = {.which = (int)below(6)};
  if (v.which == 5) {
    resizes();
    return;
  }
  struct qir_window *s = &v.s;
  *s = (struct qir_window){.n = between(1, 2), .c = between(1, 40), .dh = 1, .dw = 1};
  s->kh = between(1, 3);
  s->kw = between(1, 3);
  s->sh = between(1, 2);
  s->sw = between(1, 2);
  s->pt = below(s->kh);
  s->pl = below(s->kw);
  s->h = between(3, 8);
  s->w = between(3, 8);
  s->oh = (s->h + 2 * s->pt - s->kh) / s->sh + 1;
  s->ow = (s->w + 2 * s->pl - s->kw) / s->sw + 1;
  v.average = (struct qir_average){real(0.01f, 1), real(0.01f, 1), 0, 0, any_code(), one_in(2)};
  if (one_in(8)) v.average.y_scale = 0x1p-60f;
  v.average.x_flip = one_in(2) ? 0x80 : 0;
  v.average.x_zero = (int32_t)below(256) - v.average.x_flip;
  v.mean = (struct qir_mean){v.average.x_scale, v.average.x_zero, v.average.x_flip, 0, {0}};
  any_levels(&v);
  describe("pool %d of %zux%zux%zux%zu", v.which, s->n, s->h, s->w, s->c);
  const size_t all = s->n * s->c, bytes = v.which < 2 || v.which == 4 ? all * s->oh * s->ow : all;
  compare_two(make_pool, &v, guarded_bytes(all * s->h * s->w), v.which == 3 ? bytes * 4 : bytes,
              v.which == 3 ? 4 : 0);
}

/* ---- rows ---- */

struct row {
  int which;
  size_t rows;
  struct qir_layer_norm norm;
  struct qir_softmax softmax;
};

static int make_rows(uint32_t isa, const void *how, struct qir_step *step) {
  const struct row *v = how;
  if (v->which == 0) return qir_layer_norm_make(isa, v->rows, &v->norm, 0, 1, step);
  if (v->which == 3) return qir_softmax_make(isa, &v->softmax, 0, 1, step);
  return qir_row_softmax_make(isa, v->rows, v->norm.width, v->which == 2, 0, 1, step);
}

void rows(void) {
  struct row v = {.which = (int)below(4), .rows = between(1, 5)};
  v.norm = (struct qir_layer_norm){.width = between(1, 100), .eps = 1e-5};
  v.norm.gamma = guarded_floats(v.norm.width, 2);
  v.norm.beta = one_in(2) ? NULL : guarded_floats(v.norm.width, 2);
  v.softmax = (struct qir_softmax){.rows = v.rows, .width = v.norm.width, .gain = 256};
  v.softmax.code = any_code();
  v.softmax.x_flip = one_in(2) ? 0x80 : 0;
  v.softmax.wide = (uint8_t)one_in(2);
  v.softmax.inverse = (uint8_t)one_in(3);
  for (size_t i = 0; i < 256; ++i) v.softmax.table[i] = (float)((i + 1) * (i + 1)) * 1e30f;
  describe("rows %d of %zux%zu", v.which, v.rows, v.norm.width);
  const size_t n = v.rows * v.norm.width;
  if (v.which == 3)
    compare_two(make_rows, &v, guarded_bytes(n), n, 0);
  else
    compare_two(make_rows, &v, guarded_floats(n, 8), n * 4, 4);
}

/* ---- recurrent layers, and sums of float64 ---- */

static int make_recurrent(uint32_t isa, const void *how, struct qir_step *step) {
  return qir_recurrent_make(isa, how, step);
}

static int make_wide(uint32_t isa, const void *how, struct qir_step *step) {
  return qir_wide_product_make(isa, how, step);
}

static void recurrent(void) {
  struct qir_recurrent v = {.gates = one_in(2) ? 4 : 3, .ways = between(1, 2), .x = 0, .y = 1};
  v.h0 = v.c0 = -1;
  v.h = 2;
  v.c = 3;
  v.steps = between(1, 4);
  v.batch = between(1, 3);
  v.width = between(1, 20);
  v.hidden = between(1, 20);
  v.batch_first = one_in(2);
  v.reset_after = one_in(2);
  const size_t lines = v.ways * (size_t)v.gates * v.hidden;
  v.w = guarded_floats(lines * v.width, 1);
  v.r = guarded_floats(lines * v.hidden, 1);
  v.bias = guarded_floats(2 * lines, 1);
  describe("recurrent, %d gates, %zux%zux%zu to %zu", v.gates, v.steps, v.batch, v.width, v.hidden);
  const size_t state = v.ways * v.batch * v.hidden * 4, bytes = v.steps * state;
  compare(&(struct twins){.make = make_recurrent,
                          .how = &v,
                          .buffers = {guarded_floats(v.steps * v.batch * v.width, 2),
                                      guarded(bytes), guarded(state), guarded(state)},
                          .y = 1,
                          .bytes = bytes,
                          .item = 4});
}

void layers(void) {
  if (one_in(2)) {
    recurrent();
    return;
  }
  const size_t at = 0;
  struct qir_wide_product v = {.a = 0, .b = 1, .y = 2};
  v.s = (struct qir_matmul_shape){
      1, between(1, 9), between(1, 60), between(1, 40), &at, &at, &at, 0, 0, 1, 0, 0};
  v.s.a_row = v.s.k;
  v.s.b_value = v.s.n;
  v.s.y_row = v.s.n;
  v.s.a_end = v.s.m * v.s.k;
  describe("wide %zux%zu by %zu", v.s.m, v.s.k, v.s.n);
  const size_t bytes = v.s.m * v.s.n * 4;
  compare(&(struct twins){
      .make = make_wide,
      .how = &v,
      .buffers = {guarded_floats(v.s.a_end, 2), guarded_floats(v.s.k * v.s.n, 2), guarded(bytes)},
      .y = 2,
      .bytes = bytes,
      .item = 4});
}

/* ---- casts, and quantizers of other runtimes ---- */

struct cast {
  int which; /* a cast, quantize or dequantize with parameters of each channel */
  enum qir_kind from, to;
  size_t size;
  struct qir_codes_shape codes;
};

static int make_cast(uint32_t isa, const void *how, struct qir_step *step) {
  const struct cast *v = how;
  (void)isa;
  switch (v->which) {
    case 0: return qir_cast_make(v->from, v->to, v->size, 0, 1, step);
    case 1: return qir_encode_make(isa, v->to, &v->codes, 0, 1, step);
    default: return qir_decode_make(v->from, &v->codes, 0, 1, step);
  }
}

static size_t size_of(enum qir_kind kind) {
  static const size_t sizes[QIR_KINDS] = {4, 8, 1, 1, 2, 2, 4, 4, 8, 1};
  return sizes[kind];
}

void casts(void) {
  struct cast v = {.which = (int)below(3), .from = QIR_F32, .to = (enum qir_kind)below(QIR_KINDS)};
  v.codes = (struct qir_codes_shape){.outer = between(1, 2), .scale_at = -1, .zero_at = -1};
  v.codes.channels = between(1, 5);
  v.codes.inner = between(1, 50);
  v.size = v.codes.outer * v.codes.channels * v.codes.inner;
  if (v.which == 0 && one_in(2)) v.from = (enum qir_kind)below(QIR_KINDS);
  if (v.which == 1) v.to = (enum qir_kind)between(QIR_I8, QIR_U16);
  if (v.which == 2) {
    v.from = (enum qir_kind)between(QIR_I8, QIR_I32);
    v.to = QIR_F32;
  }
  float *scale = guarded(v.codes.channels * sizeof *scale);
  for (size_t i = 0; i < v.codes.channels; ++i) scale[i] = real(0.01f, 1);
  v.codes.scale = scale;
  v.codes.zero = guarded_words(v.codes.channels, 100);
  const int is_signed = v.to == QIR_I8 || v.to == QIR_I16;
  const int32_t span = size_of(v.to) == 1 ? 255 : 65535;
  v.codes.low = is_signed ? -(span + 1) / 2 : 0;
  v.codes.high = v.codes.low + span;
  v.codes.away = one_in(2);
  describe("cast %d of kind %d to %d, %zu", v.which, v.from, v.to, v.size);
  void *x = v.from == QIR_F32 ? (void *)guarded_floats(v.size, one_in(3) ? 1e10f : 300)
                              : guarded_bytes(v.size * size_of(v.from));
  for (size_t i = 0; v.from == QIR_BOOL && i < v.size; ++i) ((uint8_t *)x)[i] &= 1;
  const int is_float = v.to == QIR_F32 || v.to == QIR_F64;
  compare_two(make_cast, &v, x, v.size * size_of(v.to), is_float ? size_of(v.to) : 0);
}

static int make_quantizer(uint32_t isa, const void *how, struct qir_step *step) {
  int *fault;
  return qir_quantizer_make(isa, how, step, &fault);
}

void quantizers(void) {
  struct qir_quantizer v = {.bounded = one_in(2),
                            .divide = one_in(2),
                            .fused = one_in(3),
                            .shifted = one_in(3),
                            .away = one_in(2),
                            .wraps = one_in(3),
                            .nan_far = one_in(2),
                            .least = -50,
                            .most = 60,
                            .factor = real(0.1f, 20),
                            .before = real(-100, 100),
                            .zero = (int32_t)below(256),
                            .high = 255,
                            .size = between(1, 300),
                            .x = 0,
                            .y = 1};
  if (one_in(2)) {
    v.low = -128;
    v.high = 127;
    v.zero -= 128;
  }
  v.nan = v.low;
  describe("quantizer of %zu, divide %d, fused %d, away %d, wraps %d", v.size, v.divide, v.fused,
           v.away, v.wraps);
  compare_two(make_quantizer, &v, guarded_floats(v.size, one_in(3) ? 1e10f : 100), v.size, 0);
}

/* ---- histograms ---- */

void histograms(void) {
  static struct qir_tally tally;
  qir_tally_clear(&tally);
  struct qir_batch batch = {0};
  const struct qir_channels channels = {.lows = NULL};
  const size_t n = between(1, 3000);
  describe("histogram of %zu", n);
  qir_tally_add(&tally, guarded_floats(n, real(0.001f, 1000)), n, &channels, QIR_TALLY_SCALAR,
                &batch);
  result(tally.bins, sizeof tally.bins, 0);
  result(&tally.exponent, sizeof tally.exponent, 0);
  result(&tally.zeros, sizeof tally.zeros, 0);
  result(&batch.sum, sizeof batch.sum, sizeof batch.sum);
  result(&batch.squares, sizeof batch.squares, sizeof batch.squares);
}
