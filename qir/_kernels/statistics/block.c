#include "statistics/block.h"

#include <string.h>

#if defined(__GNUC__) && (defined(__x86_64__) || defined(__i386__))
#define QIR_STATISTICS_X86 1
#endif

#define QIR_INLINE static inline __attribute__((always_inline))

/* Sums run in LANES independent lanes, whatever the width of the registers. */
enum { LANES = 16, SLICE = 1024, TABLES = 4 };
typedef float lanes_float __attribute__((vector_size(LANES / 2 * sizeof(float))));
typedef double lanes_double __attribute__((vector_size(LANES / 2 * sizeof(double))));

QIR_INLINE int32_t key_of(const float *x) {
  int32_t bits;
  memcpy(&bits, x, sizeof bits);
  return bits ^ ((bits >> 31) & 0x7fffffff);
}

float qir_key_value(int32_t key) {
  int32_t bits = key ^ ((key >> 31) & 0x7fffffff);
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* Integer minimum and maximum are associative, so the compiler may vectorize them. */
QIR_INLINE void extremes(const float *x, size_t n, int32_t *low_out, int32_t *high_out) {
  int32_t low = INT32_MAX, high = INT32_MIN;
  for (size_t i = 0; i < n; i++) {
    int32_t key = key_of(x + i);
    low = key < low ? key : low;
    high = key > high ? key : high;
  }
  *low_out = low;
  *high_out = high;
}

QIR_INLINE uint32_t count_zeros(const float *x, size_t n) {
  uint32_t zeros = 0;
  for (size_t i = 0; i < n; i++) {
    uint32_t bits;
    memcpy(&bits, x + i, sizeof bits);
    zeros += (bits << 1) == 0;
  }
  return zeros;
}

struct sums {
  lanes_double sum[2], squares[2];
};

QIR_INLINE void sum_lanes(struct sums *sums, const float *x) {
  for (int half = 0; half < 2; half++) {
    lanes_float part;
    memcpy(&part, x + half * (LANES / 2), sizeof part);
    lanes_double wide = __builtin_convertvector(part, lanes_double);
    sums->sum[half] += wide;
    sums->squares[half] += wide * wide; /* exact: 24 + 24 bits */
  }
}

QIR_INLINE double fold(const lanes_double *lanes) {
  lanes_double both = lanes[0] + lanes[1];
  return ((both[0] + both[4]) + (both[2] + both[6])) + ((both[1] + both[5]) + (both[3] + both[7]));
}

QIR_INLINE void scan(const float *x, size_t n, struct qir_scan *out) {
  struct sums sums = {0};
  out->low = INT32_MAX;
  out->high = INT32_MIN;
  out->zeros = 0;
  for (size_t at = 0; at < n; at += SLICE) {
    size_t length = n - at < SLICE ? n - at : SLICE;
    int32_t low, high;
    extremes(x + at, length, &low, &high);
    out->low = low < out->low ? low : out->low;
    out->high = high > out->high ? high : out->high;
    out->zeros += count_zeros(x + at, length);
    size_t i = 0;
    for (; i + LANES <= length; i += LANES) sum_lanes(&sums, x + at + i);
    if (i < length) { /* zeros change no sum */
      float tail[LANES] = {0};
      memcpy(tail, x + at + i, (length - i) * sizeof *tail);
      sum_lanes(&sums, tail);
    }
  }
  out->sum = fold(sums.sum);
  out->squares = fold(sums.squares);
}

/* Doubles hold value / 2^exponent exactly for every float, where floats may underflow. */
QIR_INLINE void indices(const float *x, size_t n, double scale, int32_t first, uint16_t *out) {
  for (size_t i = 0; i < n; i++) {
    double scaled = x[i] * scale;
    int32_t whole = (int32_t)scaled;
    whole -= scaled < whole;
    out[i] = (uint16_t)(whole - first);
  }
}

/* Several tables, because increments of one bin must wait for each other. */
QIR_INLINE void count(const float *x, size_t n, double scale, struct qir_tally *tally) {
  uint16_t tables[TABLES][QIR_TALLY_BINS], index[SLICE];
  size_t used = (size_t)tally->used;
  if (n < SLICE) { /* tables would cost more than they save */
    indices(x, n, scale, tally->first, index);
    for (size_t i = 0; i < n; i++) tally->bins[index[i]]++;
    return;
  }
  for (int t = 0; t < TABLES; t++) memset(tables[t], 0, used * sizeof **tables);
  for (size_t at = 0; at < n; at += SLICE) {
    size_t length = n - at < SLICE ? n - at : SLICE, i = 0;
    indices(x + at, length, scale, tally->first, index);
    for (; i + TABLES <= length; i += TABLES) {
      for (int t = 0; t < TABLES; t++) tables[t][index[i + (size_t)t]]++;
    }
    for (; i < length; i++) tables[0][index[i]]++;
  }
  for (size_t i = 0; i < used; i++) {
    tally->bins[i] += (uint32_t)tables[0][i] + tables[1][i] + tables[2][i] + tables[3][i];
  }
}

QIR_INLINE void widen(float *low, float *high, float value_low, float value_high) {
  *low = value_low < *low ? value_low : *low;
  *high = value_high > *high ? value_high : *high;
}

/* Sums n values in lanes, as scan does. */
QIR_INLINE double sum_of(const float *x, size_t n) {
  lanes_double sum[2] = {{0}};
  lanes_float part;
  size_t i = 0;
  for (; i + LANES <= n; i += LANES) {
    for (int half = 0; half < 2; half++) {
      memcpy(&part, x + i + half * (LANES / 2), sizeof part);
      sum[half] += __builtin_convertvector(part, lanes_double);
    }
  }
  double rest = 0;
  for (; i < n; i++) rest += x[i];
  return fold(sum) + rest;
}

QIR_INLINE void channels(const float *x, size_t n, size_t start, const struct qir_channels *to) {
  size_t at = 0;
  if (to->inner == 1) { /* channels lie side by side */
    size_t channel = start % to->count;
    while (at < n) {
      size_t length = to->count - channel < n - at ? to->count - channel : n - at;
      float *restrict lows = to->lows + channel, *restrict highs = to->highs + channel;
      double *restrict sums = to->sums + channel;
      for (size_t i = 0; i < length; i++) widen(lows + i, highs + i, x[at + i], x[at + i]);
      for (size_t i = 0; i < length; i++) sums[i] += x[at + i];
      at += length;
      channel = 0;
    }
    return;
  }
  size_t channel = start / to->inner % to->count, inside = start % to->inner;
  while (at < n) {
    size_t length = to->inner - inside < n - at ? to->inner - inside : n - at;
    int32_t low, high;
    extremes(x + at, length, &low, &high);
    widen(to->lows + channel, to->highs + channel, qir_key_value(low), qir_key_value(high));
    to->sums[channel] += sum_of(x + at, length);
    at += length;
    inside = 0;
    channel = channel + 1 == to->count ? 0 : channel + 1;
  }
}

#define QIR_BLOCK_KERNELS(isa, target)                                            \
  target static void scan_##isa(const float *x, size_t n, struct qir_scan *out) { \
    scan(x, n, out);                                                              \
  }                                                                               \
  target static void count_##isa(const float *x, size_t n, double scale,          \
                                 struct qir_tally *tally) {                       \
    count(x, n, scale, tally);                                                    \
  }                                                                               \
  target static void channels_##isa(const float *x, size_t n, size_t start,       \
                                    const struct qir_channels *to) {              \
    channels(x, n, start, to);                                                    \
  }                                                                               \
  static const struct qir_block_kernels kernels_##isa = {scan_##isa, count_##isa, channels_##isa};

QIR_BLOCK_KERNELS(scalar, )
#ifdef QIR_STATISTICS_X86
QIR_BLOCK_KERNELS(avx2, __attribute__((target("avx2"))))
QIR_BLOCK_KERNELS(avx512, __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))))
#endif

int qir_tally_isa_best(void) {
#ifdef QIR_STATISTICS_X86
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return QIR_TALLY_AVX512;
  }
  if (__builtin_cpu_supports("avx2")) return QIR_TALLY_AVX2;
#endif
  return QIR_TALLY_SCALAR;
}

const struct qir_block_kernels *qir_block_kernels(int isa) {
#ifdef QIR_STATISTICS_X86
  if (isa == QIR_TALLY_AVX512) return &kernels_avx512;
  if (isa == QIR_TALLY_AVX2) return &kernels_avx2;
#endif
  (void)isa;
  return &kernels_scalar;
}
