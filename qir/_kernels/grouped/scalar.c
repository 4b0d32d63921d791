#include "grouped.h"

enum { WORDS = 16 };

void qir_grouped_scalar_copy(const struct qir_grouped_copy *copy) {
  int16_t *to = copy->to;
  for (size_t i = 0; i < copy->count; ++i, to += WORDS)
    for (size_t c = 0; c < WORDS; ++c)
      to[c] = c < copy->channels ? (uint8_t)(copy->x[i * copy->stride + c] ^ copy->flip) : 0;
}

static void finish(const struct qir_grouped_run *run, size_t ox, const uint32_t *acc) {
  for (size_t c = 0; c < run->columns; ++c) {
    const float real = (float)(int32_t)acc[c] * run->multiplier[c];
    if (run->to_float)
      ((float *)run->y)[ox * run->y_stride + c] = real;
    else
      ((uint8_t *)run->y)[ox * run->y_stride + c] = qir_encode(real, &run->code);
  }
}

void qir_grouped_scalar(const struct qir_grouped_run *run) {
  for (size_t ox = 0; ox < run->width; ++ox) {
    const int16_t *w = run->weights;
    uint32_t acc[WORDS];
    for (size_t c = 0; c < WORDS; ++c) acc[c] = (uint32_t)run->bias[c];
    for (size_t ky = 0; ky < run->kh; ++ky)
      for (size_t kx = 0; kx < run->kw; ++kx) {
        const char *at = (const char *)run->x + ox * run->pixel + ky * run->line + kx * run->tap;
        const int16_t *x = (const int16_t *)at;
        for (size_t s = 0; s < run->steps; ++s, w += WORDS)
          for (size_t c = 0; c < WORDS; ++c)
            acc[c] += (uint32_t)(x[run->index[s * WORDS + c]] * w[c]);
      }
    finish(run, ox, acc);
  }
}
