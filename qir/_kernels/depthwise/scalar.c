#include "depthwise.h"

enum { BLOCK = 16 };

static void pixel(const struct qir_depthwise_run *run, size_t ox, size_t first, size_t count) {
  const int16_t *w = (const int16_t *)run->weights + first * run->groups;
  uint32_t acc[BLOCK];
  for (size_t c = 0; c < count; ++c) acc[c] = (uint32_t)run->bias[first + c];
  for (size_t t = 0; t < run->groups; ++t, w += BLOCK) {
    const uint8_t *x = run->taps[t] + ox * run->step + first;
    for (size_t c = 0; c < count; ++c) acc[c] += (uint32_t)((x[c] ^ run->x_flip) * w[c]);
  }
  for (size_t c = 0; c < count; ++c)
    run->y[ox * run->channels + first + c] =
        qir_encode((float)(int32_t)acc[c] * run->multiplier[first + c], &run->code);
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
