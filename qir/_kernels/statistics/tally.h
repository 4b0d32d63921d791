#ifndef QIR_STATISTICS_TALLY_H
#define QIR_STATISTICS_TALLY_H

/*
 * What is kept of one tensor: counts, extremes, and a histogram.
 *
 * Bins have width 2^exponent and are anchored at zero: bin i holds the values
 * in [(first + i) * 2^exponent, (first + i + 1) * 2^exponent). The exponent is
 * the smallest with which the extremes lie within QIR_TALLY_BINS bins, and
 * never finer than the float grid at the larger extreme. So everything here is
 * a function of the values seen, and of neither their order nor their grouping.
 */

#include <stddef.h>
#include <stdint.h>

enum { QIR_TALLY_BINS = 2048 };

struct qir_tally {
  uint64_t finite, nan, above, below; /* numbers, NaN, +inf, -inf */
  uint64_t zeros;                     /* among the finite */
  float low, high;                    /* of the finite; +inf and -inf when there are none */
  int32_t exponent, first, used;
  uint64_t bins[QIR_TALLY_BINS];
};

/* The finite values of one array: their extremes, and sums in a fixed order. */
struct qir_batch {
  float low, high;
  double sum, squares;
};

/*
 * Extremes of each channel, and what its finite values add up to in a fixed
 * order; lows is NULL where they are not wanted.
 */
struct qir_channels {
  float *lows, *highs;
  double *sums;
  size_t count; /* channels */
  size_t inner; /* values that follow each other within one channel */
};

/* Instruction sets a tally can be filled with, the best last. */
enum qir_tally_isa { QIR_TALLY_SCALAR, QIR_TALLY_AVX2, QIR_TALLY_AVX512 };

/* The best this processor has. */
int qir_tally_isa_best(void);

void qir_tally_clear(struct qir_tally *tally);

/* Adds n values; the result is the same on every instruction set. */
void qir_tally_add(struct qir_tally *tally, const float *x, size_t n,
                   const struct qir_channels *channels, int isa, struct qir_batch *batch);

void qir_tally_merge(struct qir_tally *tally, const struct qir_tally *other);

/* Sets extremes and the window of bins that follows from them; the bins are zero. */
void qir_tally_window(struct qir_tally *tally, float low, float high);

#endif
