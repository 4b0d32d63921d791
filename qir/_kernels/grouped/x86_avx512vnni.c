#include "grouped.h"

#if defined(QIR_X86)
#include "x86_avx512.h"

QIR_TARGET_BEGIN(QIR_AVX512VNNI_TARGET)

enum { WORDS = 16, LANES = 4, BLOCK = WORDS * LANES, MOST = 6 /* pixels at once */ };

#define UNROLL _Pragma("GCC unroll 16")

void qir_grouped_avx512vnni_copy(const struct qir_grouped_copy *copy) {
  const __m512i flip = _mm512_set1_epi8((char)copy->flip);
  const __mmask64 keep = qir_avx512_first64(copy->channels);
  const uint8_t *x = copy->x;
  uint8_t *to = copy->to;
  for (size_t i = 0; i < copy->count; ++i, x += copy->stride, to += BLOCK)
    _mm512_store_si512(to, _mm512_xor_si512(_mm512_maskz_loadu_epi8(keep, x), flip));
}

/* Sums of m pixels stay in registers; four loads of weights and m of x feed 4 * m products. */
QIR_INLINE void accumulate(const struct qir_grouped_run *run, size_t ox, int m, int turned,
                           __m512i acc[MOST][LANES]) {
  UNROLL for (int t = 0; t < LANES; ++t) {
    const __m512i bias = _mm512_load_si512(run->bias + t * WORDS);
    UNROLL for (int r = 0; r < m; ++r) acc[r][t] = bias;
  }
  const int8_t *w = run->weights;
  const char *line = (const char *)run->x + ox * run->pixel;
  const size_t steps = turned ? run->steps : 1, pixel = run->pixel;
  for (size_t ky = 0; ky < run->kh; ++ky, line += run->line) {
    const char *x = line;
    for (size_t kx = 0; kx < run->kw; ++kx, x += run->tap)
      for (size_t s = 0; s < steps; ++s, w += LANES * BLOCK) {
        __m512i right[LANES];
        const __m512i index = _mm512_load_si512(run->index + s * WORDS);
        UNROLL for (int t = 0; t < LANES; ++t) right[t] = _mm512_load_si512(w + t * BLOCK);
        UNROLL for (int r = 0; r < m; ++r) {
          __m512i left = _mm512_load_si512(x + (size_t)r * pixel);
          if (turned) left = _mm512_permutexvar_epi32(index, left);
          UNROLL for (int t = 0; t < LANES; ++t) QIR_DPBUSD(acc[r][t], left, right[t]);
        }
      }
  }
}

/* Stores floats in the order of channels: sums t hold in word i channel 4 i + t. */
QIR_INLINE void store_floats(float *y, size_t columns, const __m512 real[LANES]) {
  const __m512 a = _mm512_unpacklo_ps(real[0], real[1]), b = _mm512_unpackhi_ps(real[0], real[1]);
  const __m512 c = _mm512_unpacklo_ps(real[2], real[3]), d = _mm512_unpackhi_ps(real[2], real[3]);
  const __m512d ac = _mm512_castps_pd(a), ca = _mm512_castps_pd(c);
  const __m512d bd = _mm512_castps_pd(b), db = _mm512_castps_pd(d);
  /* Channels 16 l + 4 k onwards in lane l of words[k]. */
  const __m512 words[4] = {
      _mm512_castpd_ps(_mm512_unpacklo_pd(ac, ca)), _mm512_castpd_ps(_mm512_unpackhi_pd(ac, ca)),
      _mm512_castpd_ps(_mm512_unpacklo_pd(bd, db)), _mm512_castpd_ps(_mm512_unpackhi_pd(bd, db))};
  const __m512 p = _mm512_shuffle_f32x4(words[0], words[1], 0x44);
  const __m512 q = _mm512_shuffle_f32x4(words[0], words[1], 0xee);
  const __m512 r = _mm512_shuffle_f32x4(words[2], words[3], 0x44);
  const __m512 s = _mm512_shuffle_f32x4(words[2], words[3], 0xee);
  const __m512 lanes[4] = {_mm512_shuffle_f32x4(p, r, 0x88), _mm512_shuffle_f32x4(p, r, 0xdd),
                           _mm512_shuffle_f32x4(q, s, 0x88), _mm512_shuffle_f32x4(q, s, 0xdd)};
  UNROLL for (size_t i = 0; i < 4; ++i) if (columns > 16 * i)
      _mm512_mask_storeu_ps(y + 16 * i, qir_avx512_first16(columns - 16 * i), lanes[i]);
}

QIR_INLINE void finish(const struct qir_grouped_run *run, size_t ox, int m,
                       __m512i acc[MOST][LANES]) {
  const struct qir_avx512_code code = qir_avx512_load_code(&run->code);
  /* Byte t of word i of a lane is in its word t. */
  const __m512i order =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  const __mmask64 keep = qir_avx512_first64(run->columns);
  const int plain = run->converts, spans = qir_spans(&run->code);
  UNROLL for (int r = 0; r < m; ++r) {
    __m512 real[LANES];
    UNROLL for (int t = 0; t < LANES; ++t) real[t] =
        _mm512_mul_ps(_mm512_cvtepi32_ps(acc[r][t]), _mm512_load_ps(run->multiplier + t * WORDS));
    const size_t at = (ox + (size_t)r) * run->y_stride;
    if (run->to_float) {
      store_floats((float *)run->y + at, run->columns, real);
    } else {
      const __m512i bytes =
          plain ? qir_avx512_encode64_bytes(real[0], real[1], real[2], real[3], &code, spans)
                : qir_avx512_encode64(real[0], real[1], real[2], real[3], &code);
      _mm512_mask_storeu_epi8((uint8_t *)run->y + at, keep, _mm512_shuffle_epi8(bytes, order));
    }
  }
}

#define TILE(m, turned)                                                                        \
  static __attribute__((noinline)) void tile_##m##_##turned(const struct qir_grouped_run *run, \
                                                            size_t ox) {                       \
    __m512i acc[MOST][LANES];                                                                  \
    accumulate(run, ox, m, turned, acc);                                                       \
    finish(run, ox, m, acc);                                                                   \
  }
#define TILES(turned) \
  TILE(1, turned) TILE(2, turned) TILE(3, turned) TILE(4, turned) TILE(5, turned) TILE(6, turned)
TILES(0)
TILES(1)

typedef void (*tile_fn)(const struct qir_grouped_run *, size_t);
static const tile_fn straight[] = {tile_1_0, tile_2_0, tile_3_0, tile_4_0, tile_5_0, tile_6_0};
static const tile_fn turned[] = {tile_1_1, tile_2_1, tile_3_1, tile_4_1, tile_5_1, tile_6_1};

/* Tiles of nearly the same size: a small one loads as many weights as a large one. */
void qir_grouped_avx512vnni(const struct qir_grouped_run *run) {
  const tile_fn *tiles = run->steps == 1 ? straight : turned;
  const size_t width = run->width, count = (width + MOST - 1) / MOST;
  for (size_t i = 0, ox = 0; i < count; ++i) {
    const size_t m = (width - ox + count - i - 1) / (count - i);
    tiles[m - 1](run, ox);
    ox += m;
  }
}

QIR_TARGET_END
#endif
