#ifndef QIR_STATISTICS_BLOCK_H
#define QIR_STATISTICS_BLOCK_H

/* The loops over one block of values, compiled once for each instruction set. */

#include "statistics/tally.h"

enum { QIR_BLOCK = 16384 }; /* 64 KiB: the second pass finds it in the nearest cache */

/* Floats as integers that sort the same way: NaN and the infinities lie outside. */
enum { QIR_KEY_INF = 0x7f800000, QIR_KEY_MINUS_INF = -0x7f800001 };

struct qir_scan {
  int32_t low, high; /* keys */
  uint32_t zeros;
  double sum, squares;
};

struct qir_block_kernels {
  /* Extremes, zeros and sums of n values, n <= QIR_BLOCK; sums assume they are finite. */
  void (*scan)(const float *x, size_t n, struct qir_scan *scan);
  /* Counts n finite values into the bins of the tally, whose window holds them. */
  void (*count)(const float *x, size_t n, double scale, struct qir_tally *tally);
  /* Widens and adds to channels by n finite values that start at position `start` of the array. */
  void (*channels)(const float *x, size_t n, size_t start, const struct qir_channels *channels);
};

const struct qir_block_kernels *qir_block_kernels(int isa);

/* The float that a key stands for. */
float qir_key_value(int32_t key);

#endif
