#include "depthwise.h"

enum { BLOCK = 16 };

/* A sum of two products as 16 bits hold it. */
static inline uint32_t saturated(int32_t sum) {
  return (uint32_t)(sum < INT16_MIN ? INT16_MIN : sum > INT16_MAX ? INT16_MAX : sum);
}

static void pixel(const struct qir_depthwise_run *run, size_t ox, size_t first, size_t count) {
  const int16_t *w = (const int16_t *)run->weights + first * run->groups;
  uint32_t acc[BLOCK];
  for (size_t c = 0; c < count; ++c) acc[c] = (uint32_t)run->bias[first + c];
  for (size_t t = 0; t < run->groups; ++t, w += BLOCK) {
    const uint8_t *x = run->taps[t] + ox * run->step + first;
    if (run->pairs && t + 1 < run->groups) {
      const uint8_t *next = run->taps[++t] + ox * run->step + first;
      for (size_t c = 0; c < count; ++c)
        acc[c] += saturated((x[c] ^ run->x_flip) * w[c] + (next[c] ^ run->x_flip) * w[BLOCK + c]);
      w += BLOCK;
      continue;
    }
    for (size_t c = 0; c < count; ++c) acc[c] += (uint32_t)((x[c] ^ run->x_flip) * w[c]);
  }
  const size_t at = ox * run->channels + first;
  for (size_t c = 0; c < count; ++c) {
    const float real = (float)(int32_t)acc[c] * run->multiplier[first + c];
    if (run->to_float)
      ((float *)run->y)[at + c] = real;
    else
      ((uint8_t *)run->y)[at + c] = qir_encode(real, &run->code);
  }
}

void qir_depthwise_scalar(const struct qir_depthwise_run *run) {
  for (size_t ox = 0; ox < run->width; ++ox)
    for (size_t first = 0; first < run->channels; first += BLOCK) {
      const size_t left = qir_depthwise_left(run, first);
      if (left >= BLOCK)
        pixel(run, ox, first, BLOCK);
      else
        pixel(run, ox, first, left);
    }
}
