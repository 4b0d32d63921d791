#include "gemm.h"

#if defined(QIR_X86)
#include <string.h>

#include "x86_avx512.h"

QIR_TARGET_BEGIN(QIR_AVX512_TARGET)

enum { NR = 16, KR = 4, MAX_ROWS = 14 };

#define UNROLL _Pragma("GCC unroll 16")

QIR_INLINE __m512i load4(const uint8_t *a) {
  int32_t word;
  memcpy(&word, a, sizeof word);
  return _mm512_set1_epi32(word);
}

/* Sums of m rows and v vectors stay in registers; v loads and m broadcasts feed m * v products. */
QIR_INLINE void accumulate(const struct qir_gemm_block *b, size_t i, int m, int v, int flipped,
                           __m512i acc[MAX_ROWS][4]) {
  UNROLL for (int j = 0; j < v; ++j) {
    const __m512i bias = _mm512_loadu_si512(b->bias + j * NR);
    UNROLL for (int r = 0; r < m; ++r) acc[r][j] = bias;
  }
  if (b->gain) {
    UNROLL for (int r = 0; r < m; ++r) {
      const __m512i shift = _mm512_set1_epi32(b->shift[i + (size_t)r]);
      UNROLL for (int j = 0; j < v; ++j) acc[r][j] = _mm512_add_epi32(
          acc[r][j], _mm512_mullo_epi32(shift, _mm512_loadu_si512(b->gain + j * NR)));
    }
  } else if (b->shift) {
    UNROLL for (int r = 0; r < m; ++r) {
      const __m512i shift = _mm512_set1_epi32(b->shift[i + (size_t)r]);
      UNROLL for (int j = 0; j < v; ++j) acc[r][j] = _mm512_add_epi32(acc[r][j], shift);
    }
  }
  const __m512i flip = _mm512_set1_epi8((char)0x80);
  const int8_t *w = b->panel;
  for (size_t t = 0; t < b->taps; ++t) {
    const uint8_t *rows[MAX_ROWS];
    UNROLL for (int r = 0; r < m; ++r) rows[r] = b->rows[t * b->row_stride + i + (size_t)r];
    for (size_t p = 0; p < b->depth; p += KR, w += KR * NR * v) {
      __m512i right[4];
      UNROLL for (int j = 0; j < v; ++j) right[j] = _mm512_loadu_si512(w + j * NR * KR);
      UNROLL for (int r = 0; r < m; ++r) {
        __m512i left = load4(rows[r] + p);
        if (flipped) left = _mm512_xor_si512(left, flip);
        UNROLL for (int j = 0; j < v; ++j) QIR_DPBUSD(acc[r][j], left, right[j]);
      }
    }
  }
}

/* Where the results of a tile go: a copy, as a store of bytes may change any field of a block. */
struct target {
  char *y;
  size_t stride, columns; /* in bytes */
  const float *multiplier, *plus;
};

QIR_INLINE __m512 scaled(__m512i sum, const struct target *to, int j) {
  return _mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_loadu_ps(to->multiplier + j * NR));
}

QIR_INLINE void finish_floats(const struct target *to, int m, int v, int plus,
                              __m512i acc[MAX_ROWS][4]) {
  UNROLL for (int r = 0; r < m; ++r) {
    float *y = (float *)(to->y + (size_t)r * to->stride);
    UNROLL for (int j = 0; j < v; ++j) {
      if (to->columns <= (size_t)j * NR) continue;
      __m512 real = scaled(acc[r][j], to, j);
      if (plus) real = _mm512_add_ps(real, _mm512_loadu_ps(to->plus + j * NR));
      _mm512_mask_storeu_ps(y + j * NR, qir_avx512_first16(to->columns - (size_t)j * NR), real);
    }
  }
}

/*
 * The bytes of rows r and on, as many as fill a vector. A panel of v vectors holds 4 v columns in
 * each 128-bit lane (see qir_gemm_place), so that after the narrowing a lane has them in order.
 */
QIR_INLINE __m512i encoded(const struct target *to, const struct qir_avx512_code *code, int r,
                           int m, int v, int small, __m512i acc[MAX_ROWS][4]) {
  __m512 real[4];
  UNROLL for (int i = 0; i < 4; ++i) {
    const int row = v > 2 ? r : r + i / v, column = v > 2 ? i : i % v;
    real[i] = row < m && column < v ? scaled(acc[row][column], to, column) : _mm512_setzero_ps();
  }
  const __m512i bytes = small
                            ? qir_avx512_encode64_bytes(real[0], real[1], real[2], real[3], code, 0)
                            : qir_avx512_encode64(real[0], real[1], real[2], real[3], code);
  if (v == 1)
    return _mm512_permutexvar_epi32(
        _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), bytes);
  if (v == 2) return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), bytes);
  if (v == 3)
    return _mm512_permutexvar_epi32(
        _mm512_setr_epi32(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, 0, 0, 0, 0), bytes);
  return bytes;
}

/* Parts of a vector; the instructions take constants alone. */
QIR_INLINE __m128i quarter(__m512i bytes, int i) {
  switch (i) {
    case 0: return _mm512_castsi512_si128(bytes);
    case 1: return _mm512_extracti32x4_epi32(bytes, 1);
    case 2: return _mm512_extracti32x4_epi32(bytes, 2);
    default: return _mm512_extracti32x4_epi32(bytes, 3);
  }
}
QIR_INLINE __m256i half(__m512i bytes, int i) {
  return i ? _mm512_extracti64x4_epi64(bytes, 1) : _mm512_castsi512_si256(bytes);
}

/* Stores the first columns of part i of a vector, which has 4 / v rows. */
QIR_INLINE void store(const struct target *to, int r, int i, int v, int full, __m512i bytes) {
  char *y = to->y + (size_t)(r + i) * to->stride;
  if (v == 1) {
    const __m128i row = quarter(bytes, i);
    if (full)
      _mm_storeu_si128((__m128i *)y, row);
    else
      _mm_mask_storeu_epi8(y, qir_avx512_first16(to->columns), row);
  } else if (v == 2) {
    const __m256i row = half(bytes, i);
    if (full)
      _mm256_storeu_si256((__m256i *)y, row);
    else
      _mm256_mask_storeu_epi8(y, (__mmask32)qir_avx512_first64(to->columns), row);
  } else if (full && v == 4) {
    _mm512_storeu_si512(y, bytes);
  } else {
    _mm512_mask_storeu_epi8(y, qir_avx512_first64(to->columns), bytes);
  }
}

QIR_INLINE void finish_codes(const struct target *to, const struct qir_avx512_code *code, int m,
                             int v, int full, int small, __m512i acc[MAX_ROWS][4]) {
  const int step = v > 2 ? 1 : 4 / v;
  UNROLL for (int r = 0; r < m; r += step) {
    const __m512i bytes = encoded(to, code, r, m, v, small, acc);
    UNROLL for (int i = 0; i < step; ++i) if (r + i < m) store(to, r, i, v, full, bytes);
  }
}

QIR_INLINE void finish(const struct qir_gemm_block *b, size_t i, int m, int v,
                       __m512i acc[MAX_ROWS][4]) {
  const size_t size = b->to_float ? sizeof(float) : 1, stride = b->y_stride * size;
  const struct target to = {(char *)b->y + i * stride, stride, b->columns, b->multiplier, b->plus};
  if (b->to_float) {
    if (b->plus)
      finish_floats(&to, m, v, 1, acc);
    else
      finish_floats(&to, m, v, 0, acc);
    return;
  }
  const struct qir_avx512_code code = qir_avx512_load_code(&b->code);
  const int full = to.columns >= (size_t)(v * NR);
  if (full && b->below_one)
    finish_codes(&to, &code, m, v, 1, 1, acc);
  else if (b->below_one)
    finish_codes(&to, &code, m, v, 0, 1, acc);
  else
    finish_codes(&to, &code, m, v, 0, 0, acc);
}

QIR_INLINE void tile(const struct qir_gemm_block *b, size_t i, int m, int v) {
  __m512i acc[MAX_ROWS][4];
  if (b->x_flip)
    accumulate(b, i, m, v, 1, acc);
  else
    accumulate(b, i, m, v, 0, acc);
  finish(b, i, m, v, acc);
}

/* ---- few weights ---- */

enum { HELD = 24 /* vectors of weights that stay in registers */ };

/*
 * Rows times a panel of so few weights that registers hold them all. The sums of some rows are
 * finished while those of the next are computed: as they wait for nothing, both proceed at once.
 * Returns how many rows were computed.
 */
QIR_INLINE size_t held(const struct qir_gemm_block *block, int taps, int steps, int v, int m,
                       int flipped) {
  const struct qir_gemm_block b = *block; /* no store of a result can change it */
  const struct qir_avx512_code code = qir_avx512_load_code(&b.code);
  const __m512i flip = _mm512_set1_epi8((char)0x80);
  struct target to = {b.y, b.y_stride, b.columns, b.multiplier, NULL};
  __m512i w[HELD], last[MAX_ROWS][4];
  UNROLL for (int p = 0; p < taps * steps * v; ++p) w[p] =
      _mm512_loadu_si512((const char *)b.panel + (size_t)p * NR * KR);
  size_t i = 0;
  for (; i + (size_t)m <= b.count; i += (size_t)m) {
    __m512i acc[MAX_ROWS][4];
    UNROLL for (int r = 0; r < m; ++r) {
      UNROLL for (int j = 0; j < v; ++j) acc[r][j] = _mm512_loadu_si512(b.bias + j * NR);
      UNROLL for (int t = 0; t < taps; ++t) {
        const uint8_t *x = b.rows[(size_t)t * b.row_stride + i + (size_t)r];
        UNROLL for (int p = 0; p < steps; ++p) {
          __m512i left = load4(x + p * KR);
          if (flipped) left = _mm512_xor_si512(left, flip);
          UNROLL for (int j = 0; j < v; ++j)
              QIR_DPBUSD(acc[r][j], left, w[(t * steps + p) * v + j]);
        }
      }
    }
    if (i) {
      finish_codes(&to, &code, m, v, 1, 1, last);
      to.y += (size_t)m * to.stride;
    }
    UNROLL for (int r = 0; r < m; ++r) UNROLL for (int j = 0; j < v; ++j) last[r][j] = acc[r][j];
  }
  if (i) finish_codes(&to, &code, m, v, 1, 1, last);
  return i;
}

/* Taps, steps of four values in each, vectors of columns, rows at a time. */
#define HELD_SHAPES(H) \
  H(1, 4, 4, 1)        \
  H(1, 4, 3, 2)        \
  H(1, 6, 3, 1)        \
  H(1, 4, 2, 4)        \
  H(1, 6, 2, 4) H(1, 8, 2, 2) H(3, 3, 2, 2) H(1, 4, 1, 4) H(1, 6, 1, 4) H(1, 8, 1, 4) H(3, 3, 1, 4)

#define HELD_ROWS(taps, steps, v, m)                                                  \
  static __attribute__((noinline)) size_t held_##taps##x##steps##x##v(                \
      const struct qir_gemm_block *b) {                                               \
    return b->x_flip ? held(b, taps, steps, v, m, 1) : held(b, taps, steps, v, m, 0); \
  }
HELD_SHAPES(HELD_ROWS)

/* Computes rows of blocks that have such a shape; returns how many. */
static size_t held_rows(const struct qir_gemm_block *b) {
  const size_t v = b->width / NR;
  if (b->shift || b->to_float || !b->below_one || b->columns < b->width) return 0;
#define HELD_CASE(t, s, vectors, m) \
  if (b->taps == t && b->depth == s * KR && v == vectors) return held_##t##x##s##x##vectors(b);
  HELD_SHAPES(HELD_CASE)
  return 0;
}

/* ---- all ---- */

/* One function for each shape of tile keeps the compiler's allocation of registers local. */
#define TILE(m, v)                                                                                 \
  static __attribute__((noinline)) void tile_##m##x##v(const struct qir_gemm_block *b, size_t i) { \
    tile(b, i, m, v);                                                                              \
  }
#define TILES(v, m0, m1, m2)                                                                 \
  TILE(m0, v)                                                                                \
  TILE(m1, v) TILE(m2, v) TILE(1, v) static void panel_##v(const struct qir_gemm_block *b) { \
    size_t i = held_rows(b);                                                                 \
    for (; i + m0 <= b->count; i += m0) tile_##m0##x##v(b, i);                               \
    for (; i + m1 <= b->count; i += m1) tile_##m1##x##v(b, i);                               \
    for (; i + m2 <= b->count; i += m2) tile_##m2##x##v(b, i);                               \
    for (; i < b->count; ++i) tile_1x##v(b, i);                                              \
  }
TILES(1, 14, 8, 4)
TILES(2, 12, 6, 3)
TILES(3, 8, 4, 2)
TILES(4, 6, 4, 2)

void qir_gemm_avx512vnni(const struct qir_gemm_block *b) {
  switch (b->width / NR) {
    case 1: panel_1(b); break;
    case 2: panel_2(b); break;
    case 3: panel_3(b); break;
    default: panel_4(b); break;
  }
}

QIR_TARGET_END
#endif
