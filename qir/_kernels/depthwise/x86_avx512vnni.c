#include "depthwise.h"

#if defined(QIR_X86)
#include "x86_avx512.h"

QIR_TARGET_BEGIN(QIR_AVX512_TARGET)

enum { BLOCK = 64, LANES = 4 };

#define UNROLL _Pragma("GCC unroll 16")

/* Sixty-four channels of a group of four taps, the taps of a channel side by side. */
struct column {
  __m512i v[4];
};

QIR_INLINE __m512i load(const uint8_t *x, __mmask64 keep, __m512i flip) {
  return _mm512_xor_si512(_mm512_maskz_loadu_epi8(keep, x), flip);
}

QIR_INLINE struct column interleave(const uint8_t *const *taps, size_t c, __mmask64 keep,
                                    __m512i flip) {
  const __m512i r0 = load(taps[0] + c, keep, flip), r1 = load(taps[1] + c, keep, flip);
  const __m512i r2 = load(taps[2] + c, keep, flip), r3 = load(taps[3] + c, keep, flip);
  const __m512i a = _mm512_unpacklo_epi8(r0, r1), b = _mm512_unpackhi_epi8(r0, r1);
  const __m512i d = _mm512_unpacklo_epi8(r2, r3), e = _mm512_unpackhi_epi8(r2, r3);
  return (struct column){{_mm512_unpacklo_epi16(a, d), _mm512_unpackhi_epi16(a, d),
                          _mm512_unpacklo_epi16(b, e), _mm512_unpackhi_epi16(b, e)}};
}

QIR_INLINE struct column start(const int32_t *bias) {
  struct column sum;
  UNROLL for (int i = 0; i < 4; ++i) sum.v[i] = _mm512_loadu_si512(bias + 16 * i);
  return sum;
}

QIR_INLINE void add(struct column *sum, const struct column *x, const int8_t *w) {
  UNROLL for (int i = 0; i < 4; ++i) QIR_DPBUSD(sum->v[i], x->v[i], _mm512_loadu_si512(w + 64 * i));
}

QIR_INLINE void store(uint8_t *y, __mmask64 keep, const struct column *sum, const float *multiplier,
                      const struct qir_avx512_code *code) {
  __m512 real[4];
  UNROLL for (int i = 0; i < 4; ++i) real[i] =
      _mm512_mul_ps(_mm512_cvtepi32_ps(sum->v[i]), _mm512_loadu_ps(multiplier + 16 * i));
  _mm512_mask_storeu_epi8(y, keep, qir_avx512_encode64(real[0], real[1], real[2], real[3], code));
}

static void any_window(const struct qir_depthwise_row *row) {
  const struct qir_avx512_code code = qir_avx512_load_code(&row->code);
  const __m512i flip = _mm512_set1_epi8((char)row->x_flip);
  for (size_t ox = 0; ox < row->width; ++ox)
    for (size_t c = 0; c < row->channels; c += BLOCK) {
      const __mmask64 keep = qir_avx512_first64(row->channels - c);
      const uint8_t *const *taps =
          (const uint8_t *const *)row->taps + ox * row->groups * LANES;
      const int8_t *w = (const int8_t *)row->weights + c * row->groups * LANES;
      struct column sum = start(row->bias + c);
      for (size_t g = 0; g < row->groups; ++g, taps += LANES, w += BLOCK * LANES) {
        const struct column x = interleave(taps, c, keep, flip);
        add(&sum, &x, w);
      }
      store(row->y + ox * row->channels + c, keep, &sum, row->multiplier + c, &code);
    }
}

/*
 * A window three wide that moves by one: each column of the input is the right one of a pixel, the
 * middle one of the next and the left one of the one after, so it is interleaved once for three.
 */
static void slide(const struct qir_depthwise_row *row) {
  const struct qir_avx512_code code = qir_avx512_load_code(&row->code);
  const __m512i flip = _mm512_set1_epi8((char)row->x_flip);
  for (size_t c = 0; c < row->channels; c += BLOCK) {
    const __mmask64 keep = qir_avx512_first64(row->channels - c);
    const uint8_t *const *taps = (const uint8_t *const *)row->taps;
    const int8_t *w = (const int8_t *)row->weights + c * 3 * LANES;
    const int32_t *bias = row->bias + c;
    const int8_t *left = w, *middle = w + BLOCK * LANES, *right = w + 2 * BLOCK * LANES;
    struct column x = interleave(taps, c, keep, flip);
    struct column now = start(bias), next = start(bias);
    add(&now, &x, left);
    x = interleave(taps + LANES, c, keep, flip);
    add(&now, &x, middle);
    add(&next, &x, left);
    for (size_t ox = 0; ox < row->width; ++ox, taps += 3 * LANES) {
      struct column last = start(bias);
      x = interleave(taps + 2 * LANES, c, keep, flip);
      add(&now, &x, right);
      add(&next, &x, middle);
      add(&last, &x, left);
      store(row->y + ox * row->channels + c, keep, &now, row->multiplier + c, &code);
      now = next;
      next = last;
    }
  }
}

void qir_depthwise_avx512vnni(const struct qir_depthwise_row *row) {
  if (row->slides)
    slide(row);
  else
    any_window(row);
}

QIR_TARGET_END
#endif
