#include "grouped.h"

#if defined(QIR_X86)
#include "x86_avx2.h"

QIR_TARGET_BEGIN("avx2,fma")

enum { WORDS = 8, LANES = 2, BLOCK = WORDS * LANES, MOST = 4 /* pixels at once */ };

void qir_grouped_avx2_copy(const struct qir_grouped_copy *copy) {
  const __m128i flip = _mm_set1_epi8((char)copy->flip);
  const uint8_t *x = copy->x;
  int16_t *to = copy->to;
  for (size_t i = 0; i < copy->count; ++i, x += copy->stride, to += BLOCK) {
    __m128i bytes;
    if (copy->channels >= BLOCK) {
      bytes = _mm_loadu_si128((const __m128i *)x);
    } else {
      uint8_t tail[BLOCK] = {0};
      memcpy(tail, x, copy->channels);
      bytes = _mm_loadu_si128((const __m128i *)tail);
    }
    _mm256_store_si256((__m256i *)to, _mm256_cvtepu8_epi16(_mm_xor_si128(bytes, flip)));
  }
}

/* The m pixels from ox on. */
static inline __attribute__((always_inline)) void tile(const struct qir_grouped_run *run, size_t ox,
                                                       int m) {
  __m256i acc[MOST][LANES];
  for (int t = 0; t < LANES; ++t)
    for (int r = 0; r < m; ++r)
      acc[r][t] = _mm256_load_si256((const __m256i *)(run->bias + t * WORDS));
  const int16_t *w = run->weights;
  const char *line = (const char *)run->x + ox * run->pixel;
  for (size_t ky = 0; ky < run->kh; ++ky, line += run->line) {
    const char *x = line;
    for (size_t kx = 0; kx < run->kw; ++kx, x += run->tap)
      for (size_t s = 0; s < run->steps; ++s, w += LANES * BLOCK) {
        const __m256i index = _mm256_load_si256((const __m256i *)(run->index + s * WORDS));
        for (int r = 0; r < m; ++r) {
          const __m256i left = _mm256_permutevar8x32_epi32(
              _mm256_load_si256((const __m256i *)(x + (size_t)r * run->pixel)), index);
          for (int t = 0; t < LANES; ++t) {
            const __m256i right = _mm256_load_si256((const __m256i *)(w + t * BLOCK));
            acc[r][t] = _mm256_add_epi32(acc[r][t], _mm256_madd_epi16(left, right));
          }
        }
      }
  }
  const __m256 even = _mm256_load_ps(run->multiplier);
  const __m256 odd = _mm256_load_ps(run->multiplier + WORDS);
  for (int r = 0; r < m; ++r) {
    const __m256 p = _mm256_mul_ps(_mm256_cvtepi32_ps(acc[r][0]), even);
    const __m256 q = _mm256_mul_ps(_mm256_cvtepi32_ps(acc[r][1]), odd);
    const __m256 low = _mm256_unpacklo_ps(p, q), high = _mm256_unpackhi_ps(p, q);
    const __m256 first = _mm256_permute2f128_ps(low, high, 0x20);
    const __m256 second = _mm256_permute2f128_ps(low, high, 0x31);
    const size_t at = (ox + (size_t)r) * run->y_stride;
    if (run->to_float)
      qir_avx2_store_f32((float *)run->y + at, first, second, run->columns);
    else
      qir_avx2_store_codes((uint8_t *)run->y + at, first, second, &run->code, run->columns);
  }
}

void qir_grouped_avx2(const struct qir_grouped_run *run) {
  size_t ox = 0;
  for (; ox + 4 <= run->width; ox += 4) tile(run, ox, 4);
  if (ox + 2 <= run->width) {
    tile(run, ox, 2);
    ox += 2;
  }
  if (ox < run->width) tile(run, ox, 1);
}

QIR_TARGET_END
#endif
