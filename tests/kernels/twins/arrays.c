/* Quantized values of whole arrays (codes.h), whose element types have the names of tensors.h. */

#include "codes/codes.h"
#include "twins.h"

static void encoded(const struct qir_rows *rows, size_t n, int wide) {
  const float factor = real(0.1f, 3), before = real(-2, 2);
  const double wide_factor = (double)factor, wide_before = (double)before;
  const int32_t after = (int32_t)below(100) - 50, nan = 3;
  struct qir_encode how = {.factor = wide ? (const void *)&wide_factor : &factor,
                           .after = &after,
                           .nan = &nan,
                           .low = -128,
                           .high = 127,
                           .round = (enum qir_round)below(8),
                           .divide = one_in(2),
                           .sums = one_in(3),
                           .itemsize = 1 << below(3)};
  if (one_in(2)) how.before = wide ? (const void *)&wide_before : &before;
  if (how.itemsize == 4) {
    how.low = INT32_MIN;
    how.high = INT32_MAX;
  }
  const float scale = one_in(3) ? 1e10f : 100;
  void *x = how.sums ? (void *)guarded_words(n, 100000) : NULL;
  if (!x) {
    const float *narrow = guarded_floats(n, scale);
    double *numbers = guarded(n * sizeof *numbers);
    for (size_t i = 0; i < n; ++i) numbers[i] = (double)narrow[i];
    x = wide ? (void *)numbers : (void *)narrow;
  }
  void *codes = guarded(n * (size_t)how.itemsize);
  describe("encode %zu, round %d, wide %d, sums %d, itemsize %d", n, how.round, wide, how.sums,
           how.itemsize);
  qir_codes_encode(&how, rows, x, codes, wide, QIR_ISA_SCALAR);
  result(codes, n * (size_t)how.itemsize, 0);
}

static void decoded(const struct qir_rows *rows, size_t n, int wide) {
  const float scale = real(0.01f, 2), zero = real(-100, 100);
  const double wide_scale = (double)scale, wide_zero = (double)zero;
  const size_t kind = below(6);
  const struct qir_decode how = {.zero = wide ? (const void *)&wide_zero : &zero,
                                 .scale = wide ? (const void *)&wide_scale : &scale,
                                 .carrier = (enum qir_carrier)kind};
  void *y = guarded(n * (wide ? 8 : 4));
  describe("decode %zu of kind %zu, wide %d", n, kind, wide);
  qir_codes_decode(&how, rows, guarded_bytes(n << kind / 2), y, wide, QIR_ISA_SCALAR);
  result(y, n * (wide ? 8 : 4), wide ? 8 : 4);
}

void arrays(void) {
  const int64_t first = 0;
  const size_t n = between(1, 700);
  const struct qir_rows rows = {.rows = 1, .inner = n, .run = n, .first = &first};
  if (one_in(2))
    encoded(&rows, n, one_in(2));
  else
    decoded(&rows, n, one_in(2));
}
