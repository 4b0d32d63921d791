/* The functions of quantizers.h as plain loops, for the compiler to vectorize with the instructions
 * of the file that includes this; QIR_QUANTIZER_NAME and QIR_RANGE_NAME are their names there. */

#include <math.h>

#include "quantizers.h"
#include "requant.h"

enum { CHUNK = 512 };

static inline void scaled(const struct qir_quantizer *q, const float *restrict x, float *restrict v,
                          size_t n) {
  const float factor = q->factor, before = q->before;
  if (q->bounded) {
    const float least = q->least, most = q->most;
    for (size_t i = 0; i < n; ++i) {
      const float above = x[i] < least ? least : x[i];
      v[i] = above > most ? most : above;
    }
  } else {
    for (size_t i = 0; i < n; ++i) v[i] = x[i];
  }
  if (q->fused)
    for (size_t i = 0; i < n; ++i) v[i] = fmaf(v[i], factor, before);
  else if (q->divide)
    for (size_t i = 0; i < n; ++i) v[i] = v[i] / factor;
  else
    for (size_t i = 0; i < n; ++i) v[i] = v[i] * factor;
  if (q->shifted)
    for (size_t i = 0; i < n; ++i) v[i] += before;
}

/* What is beyond the codes is clamped before it is rounded; a NaN becomes the low end. */
static inline void ended(const struct qir_quantizer *q, float *restrict v, uint8_t *restrict y,
                         size_t n) {
  const int32_t zero = q->zero;
  const float low = (float)(q->low - zero), high = (float)(q->high - zero);
  for (size_t i = 0; i < n; ++i) {
    v[i] = v[i] > low ? v[i] : low;
    v[i] = v[i] < high ? v[i] : high;
  }
  if (q->away)
    for (size_t i = 0; i < n; ++i) y[i] = (uint8_t)((int32_t)qir_round_away(v[i]) + zero);
  else
    for (size_t i = 0; i < n; ++i) y[i] = (uint8_t)((int32_t)qir_round(v[i]) + zero);
}

static inline void wrapped(const struct qir_quantizer *q, const float *restrict v,
                           uint8_t *restrict y, size_t n) {
  const float most = 2147483520.0f, least = -2147483648.0f;
  const int32_t zero = q->zero, low = q->low, high = q->high;
  for (size_t i = 0; i < n; ++i) {
    float whole = rintf(v[i]);
    whole = whole < most ? whole : most;
    whole = whole > least ? whole : least;
    const int32_t sum = (int32_t)((uint32_t)(int32_t)whole + (uint32_t)zero);
    const int32_t above = sum > low ? sum : low;
    y[i] = (uint8_t)(above < high ? above : high);
  }
}

int QIR_QUANTIZER_NAME(const struct qir_quantizer *q, const float *x, uint8_t *y, size_t n) {
  float v[CHUNK];
  int any = 0;
  for (size_t at = 0; at < n; at += CHUNK) {
    const size_t some = n - at < CHUNK ? n - at : CHUNK;
    int found = 0;
    scaled(q, x + at, v, some);
    for (size_t i = 0; i < some; ++i) found |= v[i] != v[i];
    uint8_t nan[CHUNK];
    if (found)
      for (size_t i = 0; i < some; ++i) nan[i] = v[i] != v[i];
    if (q->wraps)
      wrapped(q, v, y + at, some);
    else
      ended(q, v, y + at, some);
    if (found && !q->nan_far)
      for (size_t i = 0; i < some; ++i)
        if (nan[i]) y[at + i] = (uint8_t)q->nan;
    any |= found;
  }
  return any;
}

int QIR_RANGE_NAME(const float *x, size_t n, float *low, float *high) {
  enum { LANES = 64 }; /* so that no element waits for the one before */
  float least[LANES], most[LANES];
  int32_t nan[LANES] = {0}, found = 0;
  for (size_t l = 0; l < LANES; ++l) {
    least[l] = *low;
    most[l] = *high;
  }
  for (; n >= LANES; n -= LANES, x += LANES)
    for (size_t l = 0; l < LANES; ++l) {
      least[l] = x[l] < least[l] ? x[l] : least[l];
      most[l] = x[l] > most[l] ? x[l] : most[l];
      nan[l] |= x[l] != x[l];
    }
  for (size_t l = 0; l < n; ++l) {
    least[l] = x[l] < least[l] ? x[l] : least[l];
    most[l] = x[l] > most[l] ? x[l] : most[l];
    nan[l] |= x[l] != x[l];
  }
  for (size_t l = 0; l < LANES; ++l) {
    *low = least[l] < *low ? least[l] : *low;
    *high = most[l] > *high ? most[l] : *high;
    found |= nan[l];
  }
  return found;
}

#undef QIR_RANGE_NAME
#undef QIR_QUANTIZER_NAME
