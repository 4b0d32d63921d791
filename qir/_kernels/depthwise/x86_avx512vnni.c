#include "depthwise.h"

#if defined(QIR_X86)
#include "x86_avx512.h"

QIR_TARGET_BEGIN(QIR_AVX512_TARGET)

enum { BLOCK = 64, LANES = 4 };

#define UNROLL _Pragma("GCC unroll 16")

/* Sixty-four channels of a group of four taps, the taps of a channel side by side; or their sums.
 */
struct column {
  __m512i v[4];
};

/* What is the same for all pixels of a block of channels. */
struct block {
  const uint8_t *const *taps;
  size_t c;
  __mmask64 keep;
  int flipped;
  const int32_t *bias;
  const float *multiplier;
  uint8_t *y;
};

QIR_INLINE struct block block_at(const struct qir_depthwise_run *run, size_t c, int flipped) {
  return (struct block){
      run->taps,           c,         qir_avx512_first64(run->channels - c), flipped, run->bias + c,
      run->multiplier + c, run->y + c};
}

QIR_INLINE __m512i load(const struct block *b, size_t tap, size_t at) {
  const __m512i x = _mm512_maskz_loadu_epi8(b->keep, b->taps[tap] + at + b->c);
  return b->flipped ? _mm512_xor_si512(x, _mm512_set1_epi8((char)0x80)) : x;
}

QIR_INLINE struct column interleave(__m512i r0, __m512i r1, __m512i r2, __m512i r3) {
  const __m512i a = _mm512_unpacklo_epi8(r0, r1), b = _mm512_unpackhi_epi8(r0, r1);
  const __m512i d = _mm512_unpacklo_epi8(r2, r3), e = _mm512_unpackhi_epi8(r2, r3);
  return (struct column){{_mm512_unpacklo_epi16(a, d), _mm512_unpackhi_epi16(a, d),
                          _mm512_unpacklo_epi16(b, e), _mm512_unpackhi_epi16(b, e)}};
}

QIR_INLINE struct column start(const struct block *b) {
  struct column sum;
  UNROLL for (int i = 0; i < 4; ++i) sum.v[i] = _mm512_loadu_si512(b->bias + 16 * i);
  return sum;
}

QIR_INLINE void add(struct column *sum, const struct column *x, const struct column *w) {
  UNROLL for (int i = 0; i < 4; ++i) QIR_DPBUSD(sum->v[i], x->v[i], w->v[i]);
}

QIR_INLINE struct column weights_at(const void *weights, size_t at) {
  struct column w;
  UNROLL for (int i = 0; i < 4; ++i) w.v[i] =
      _mm512_loadu_si512((const int8_t *)weights + at + 64 * i);
  return w;
}

QIR_INLINE void store(const struct block *b, size_t at, const struct column *sum,
                      const struct qir_avx512_code *code) {
  __m512 real[4];
  UNROLL for (int i = 0; i < 4; ++i) real[i] =
      _mm512_mul_ps(_mm512_cvtepi32_ps(sum->v[i]), _mm512_loadu_ps(b->multiplier + 16 * i));
  _mm512_mask_storeu_epi8(b->y + at, b->keep,
                          qir_avx512_encode64(real[0], real[1], real[2], real[3], code));
}

QIR_INLINE void any_window(const struct qir_depthwise_run *run, int flipped) {
  const struct qir_avx512_code code = qir_avx512_load_code(&run->code);
  for (size_t ox = 0; ox < run->width; ++ox)
    for (size_t c = 0; c < run->channels; c += BLOCK) {
      const struct block b = block_at(run, c, flipped);
      const size_t at = ox * run->step, taps = run->groups * LANES;
      struct column sum = start(&b);
      for (size_t t = 0; t < taps; t += LANES) {
        const struct column x = interleave(load(&b, t, at), load(&b, t + 1, at),
                                           load(&b, t + 2, at), load(&b, t + 3, at));
        const struct column w = weights_at(run->weights, (c * taps + t * BLOCK));
        add(&sum, &x, &w);
      }
      store(&b, ox * run->channels, &sum, &code);
    }
}

/* The column of a window of 3 by 3 that begins at `tap`, `at` bytes on. */
QIR_INLINE struct column column_at(const struct block *b, size_t tap, size_t at) {
  return interleave(load(b, tap, at), load(b, tap + 1, at), load(b, tap + 2, at),
                    _mm512_setzero_si512());
}

/* A window of 3 by 3 that moves by more than one. */
QIR_INLINE void jump(const struct qir_depthwise_run *run, int flipped) {
  const struct qir_avx512_code code = qir_avx512_load_code(&run->code);
  const size_t step = run->step, channels = run->channels, width = run->width;
  for (size_t c = 0; c < channels; c += BLOCK) {
    const struct block b = block_at(run, c, flipped);
    const size_t at = c * 3 * LANES, group = BLOCK * LANES;
    const struct column left = weights_at(run->weights, at);
    const struct column middle = weights_at(run->weights, at + group);
    const struct column right = weights_at(run->weights, at + 2 * group);
    for (size_t ox = 0; ox < width; ++ox) {
      struct column sum = start(&b);
      struct column x = column_at(&b, 0, ox * step);
      add(&sum, &x, &left);
      x = column_at(&b, LANES, ox * step);
      add(&sum, &x, &middle);
      x = column_at(&b, 2 * LANES, ox * step);
      add(&sum, &x, &right);
      store(&b, ox * channels, &sum, &code);
    }
  }
}

/*
 * A window of 3 by 3 that moves by one: a column of the input is the right one of a pixel, the
 * middle one of the next and the left one of the one after, so it is interleaved once for three.
 */
QIR_INLINE void slide(const struct qir_depthwise_run *run, int flipped) {
  const struct qir_avx512_code code = qir_avx512_load_code(&run->code);
  const size_t step = run->step, channels = run->channels, width = run->width;
  for (size_t c = 0; c < channels; c += BLOCK) {
    const struct block b = block_at(run, c, flipped);
    const size_t at = c * 3 * LANES, group = BLOCK * LANES;
    const struct column left = weights_at(run->weights, at);
    const struct column middle = weights_at(run->weights, at + group);
    const struct column right = weights_at(run->weights, at + 2 * group);
    struct column s0 = start(&b), s1 = start(&b), s2;
    struct column x = column_at(&b, 0, 0);
    add(&s0, &x, &left);
    x = column_at(&b, 0, step);
    add(&s0, &x, &middle);
    add(&s1, &x, &left);
#define PIXEL(ox, now, next, last)         \
  x = column_at(&b, 0, ((ox) + 2) * step); \
  last = start(&b);                        \
  add(&now, &x, &right);                   \
  store(&b, (ox) * channels, &now, &code); \
  add(&next, &x, &middle);                 \
  add(&last, &x, &left);
    size_t ox = 0;
    for (; ox + 3 <= width; ox += 3) { /* sums take turns, so that none is moved */
      PIXEL(ox, s0, s1, s2)
      PIXEL(ox + 1, s1, s2, s0)
      PIXEL(ox + 2, s2, s0, s1)
    }
    if (ox < width) {
      PIXEL(ox, s0, s1, s2)
      if (ox + 1 < width) {
        PIXEL(ox + 1, s1, s2, s0)
      }
    }
#undef PIXEL
  }
}

#define WINDOW(name)                                                              \
  static void name##_plain(const struct qir_depthwise_run *run) { name(run, 0); } \
  static void name##_flipped(const struct qir_depthwise_run *run) { name(run, 1); }
WINDOW(any_window)
WINDOW(jump)
WINDOW(slide)

void qir_depthwise_avx512vnni(const struct qir_depthwise_run *run) {
  if (!run->three)
    (run->x_flip ? any_window_flipped : any_window_plain)(run);
  else if (run->slides && run->width > 2)
    (run->x_flip ? slide_flipped : slide_plain)(run);
  else
    (run->x_flip ? jump_flipped : jump_plain)(run);
}

QIR_TARGET_END
#endif
