#include "depthwise.h"

enum { BLOCK = 16 };

static void pixel(const struct qir_depthwise_row *row, size_t ox, size_t first, size_t count) {
  const int16_t *w = (const int16_t *)row->weights + first * row->groups;
  uint32_t acc[BLOCK];
  for (size_t c = 0; c < count; ++c) acc[c] = (uint32_t)row->bias[first + c];
  for (size_t t = 0; t < row->groups; ++t, w += BLOCK) {
    const uint8_t *x = (const uint8_t *)row->taps[ox * row->groups + t] + first;
    for (size_t c = 0; c < count; ++c) acc[c] += (uint32_t)((x[c] ^ row->x_flip) * w[c]);
  }
  for (size_t c = 0; c < count; ++c)
    row->y[ox * row->channels + first + c] =
        qir_encode((float)(int32_t)acc[c] * row->multiplier[first + c], &row->code);
}

void qir_depthwise_scalar(const struct qir_depthwise_row *row) {
  for (size_t ox = 0; ox < row->width; ++ox)
    for (size_t first = 0; first < row->channels; first += BLOCK) {
      const size_t left = row->channels - first;
      if (left >= BLOCK)
        pixel(row, ox, first, BLOCK);
      else
        pixel(row, ox, first, left);
    }
}
