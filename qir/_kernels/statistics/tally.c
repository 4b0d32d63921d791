#include "statistics/tally.h"

#include <fenv.h>
#include <math.h>
#include <string.h>

#include "statistics/block.h"

/*
 * A host may have asked for denormals to be flushed to zero, or for another
 * rounding: results must not depend on it.
 */
static void plain_floats(fenv_t *saved) {
  fegetenv(saved);
  fesetenv(FE_DFL_ENV);
}

static int32_t bin_of(float value, int exponent) {
  return (int32_t)floor(ldexp((double)value, -exponent));
}

void qir_tally_window(struct qir_tally *tally, float low, float high) {
  int exponent = -149, top;
  double reach = fmax(fabs((double)low), fabs((double)high));
  if (reach > 0) { /* reach < 2^top, so the float grid there is 2^(top - 24) */
    frexp(reach, &top);
    exponent = top - 24 > exponent ? top - 24 : exponent;
  }
  while (bin_of(high, exponent) - bin_of(low, exponent) >= QIR_TALLY_BINS) exponent++;
  tally->low = low;
  tally->high = high;
  tally->exponent = exponent;
  tally->first = bin_of(low, exponent);
  tally->used = bin_of(high, exponent) - tally->first + 1;
}

void qir_tally_clear(struct qir_tally *tally) {
  memset(tally, 0, sizeof *tally);
  tally->low = INFINITY;
  tally->high = -INFINITY;
}

/* Adds the bins of `from` to those of a window that is as wide or wider. */
static void add_bins(struct qir_tally *tally, const struct qir_tally *from, const uint64_t *bins) {
  int by = tally->exponent - from->exponent;
  by = by > 31 ? 31 : by;
  for (int32_t i = 0; i < from->used; i++) {
    tally->bins[((from->first + i) >> by) - tally->first] += bins[i];
  }
}

static void widen(struct qir_tally *tally, float low, float high) {
  if (low >= tally->low && high <= tally->high) return;
  low = low < tally->low ? low : tally->low;
  high = high > tally->high ? high : tally->high;
  if (tally->finite == 0) {
    qir_tally_window(tally, low, high);
    return;
  }
  struct qir_tally old;
  size_t head = offsetof(struct qir_tally, bins);
  size_t size = head + (size_t)tally->used * sizeof *tally->bins;
  memcpy(&old, tally, size);
  memset(tally->bins, 0, size - head);
  qir_tally_window(tally, low, high);
  add_bins(tally, &old, old.bins);
}

/* Moves the finite values to `kept`, with their channels as above, and counts the others. */
static size_t sift(struct qir_tally *tally, const float *x, size_t n, size_t start,
                   const struct qir_channels *channels, float *kept) {
  size_t count = 0;
  for (size_t i = 0; i < n; i++) {
    if (isfinite(x[i])) {
      kept[count++] = x[i];
      if (!channels->lows) continue;
      size_t channel = (start + i) / channels->inner % channels->count;
      float *low = channels->lows + channel, *high = channels->highs + channel;
      *low = x[i] < *low ? x[i] : *low;
      *high = x[i] > *high ? x[i] : *high;
      channels->sums[channel] += x[i];
    } else if (isnan(x[i])) {
      tally->nan++;
    } else if (x[i] > 0) {
      tally->above++;
    } else {
      tally->below++;
    }
  }
  return count;
}

static void add_block(struct qir_tally *tally, const float *x, size_t n, size_t start,
                      const struct qir_channels *channels, const struct qir_block_kernels *kernels,
                      struct qir_batch *batch) {
  struct qir_scan scan;
  float kept[QIR_BLOCK];
  kernels->scan(x, n, &scan);
  if (scan.high >= QIR_KEY_INF || scan.low <= QIR_KEY_MINUS_INF) {
    n = sift(tally, x, n, start, channels, kept);
    if (n == 0) return;
    x = kept;
    kernels->scan(x, n, &scan);
  } else if (channels->lows) {
    kernels->channels(x, n, start, channels);
  }
  float low = qir_key_value(scan.low) + 0.0F, high = qir_key_value(scan.high) + 0.0F;
  widen(tally, low, high);
  kernels->count(x, n, ldexp(1.0, -tally->exponent), tally);
  tally->finite += n;
  tally->zeros += scan.zeros;
  batch->low = low < batch->low ? low : batch->low;
  batch->high = high > batch->high ? high : batch->high;
  batch->sum += scan.sum;
  batch->squares += scan.squares;
}

void qir_tally_add(struct qir_tally *tally, const float *x, size_t n,
                   const struct qir_channels *channels, int isa, struct qir_batch *batch) {
  const struct qir_block_kernels *kernels = qir_block_kernels(isa);
  fenv_t saved;
  plain_floats(&saved);
  *batch = (struct qir_batch){INFINITY, -INFINITY, 0, 0};
  for (size_t at = 0; at < n; at += QIR_BLOCK) {
    size_t length = n - at < QIR_BLOCK ? n - at : QIR_BLOCK;
    add_block(tally, x + at, length, at, channels, kernels, batch);
  }
  fesetenv(&saved);
}

void qir_tally_merge(struct qir_tally *tally, const struct qir_tally *other) {
  fenv_t saved;
  plain_floats(&saved);
  if (other->finite) {
    widen(tally, other->low, other->high);
    add_bins(tally, other, other->bins);
  }
  tally->finite += other->finite;
  tally->zeros += other->zeros;
  tally->nan += other->nan;
  tally->above += other->above;
  tally->below += other->below;
  fesetenv(&saved);
}
