#include "gemm.h"

#if defined(QIR_X86)
#include <string.h>

#include "x86_avx512.h"

QIR_TARGET_BEGIN(QIR_AVX512VNNI_TARGET)

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

/* Where results are clamped: in floats, if they may be large, in bytes, or by the narrowing. */
enum { CLAMP_FLOATS, CLAMP, SPAN_U8, SPAN_I8 };

/* Sixty-four floats to bytes where codes span their type: zero16 is the zero of that type. */
QIR_INLINE __m512i spanning(const __m512 real[4], const struct qir_avx512_code *code, int is_i8) {
  __m512i half[2];
  UNROLL for (int i = 0; i < 2; ++i) half[i] = _mm512_adds_epi16(
      _mm512_packs_epi32(_mm512_cvtps_epi32(real[2 * i]), _mm512_cvtps_epi32(real[2 * i + 1])),
      code->zero16);
  return is_i8 ? _mm512_packs_epi16(half[0], half[1]) : _mm512_packus_epi16(half[0], half[1]);
}

/*
 * The bytes of rows r and on, as many as fill a vector. A panel of v vectors holds 4 v columns in
 * each 128-bit lane (see qir_gemm_place), so that after the narrowing a lane has them in order.
 */
QIR_INLINE __m512i encoded(const struct target *to, const struct qir_avx512_code *code, int r,
                           int m, int v, int bounds, __m512i acc[MAX_ROWS][4]) {
  __m512 real[4];
  UNROLL for (int i = 0; i < 4; ++i) {
    const int row = v > 2 ? r : r + i / v, column = v > 2 ? i : i % v;
    real[i] = row < m && column < v ? scaled(acc[row][column], to, column) : _mm512_setzero_ps();
  }
  const __m512i bytes = bounds > CLAMP ? spanning(real, code, bounds == SPAN_I8)
                        : bounds == CLAMP
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
                             int v, int full, int bounds, __m512i acc[MAX_ROWS][4]) {
  const int step = v > 2 ? 1 : 4 / v;
  UNROLL for (int r = 0; r < m; r += step) {
    const __m512i bytes = encoded(to, code, r, m, v, bounds, acc);
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

/* ---- one tap ---- */

/*
 * The sums of some rows are finished while those of the next are computed: as they wait for
 * nothing, both proceed at once. Products keep their place in the source, so that the compiler
 * spreads the other instructions among them.
 */
#define PINNED_DPBUSD(sum, left, right) \
  __asm__ volatile("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(left), "v"(right))

enum {
  FIRST = 4, /* steps of four values in which the rows before are finished */
  SUMS = 12, /* vectors: what two multipliers keep in flight, and as many that are finished */
};

/* How the sums of a block become bytes: with a row of results per panel that is `full`. */
struct way {
  int v, m, flipped, full, bounds;
};

QIR_INLINE struct qir_avx512_code load_code(const struct way *way, const struct qir_code *to) {
  struct qir_avx512_code code = qir_avx512_load_code(to);
  if (way->bounds == SPAN_I8) code.zero16 = _mm512_set1_epi16((short)to->zero);
  return code;
}

/* Adds the products of four values of each row by those of each column. */
QIR_INLINE void add_step(const struct way *way, const uint8_t *const rows[], size_t p,
                         const __m512i right[], __m512i acc[MAX_ROWS][4]) {
  UNROLL for (int r = 0; r < way->m; ++r) {
    __m512i left = load4(rows[r] + p * KR);
    if (way->flipped) left = _mm512_xor_si512(left, _mm512_set1_epi8((char)0x80));
    UNROLL for (int j = 0; j < way->v; ++j) PINNED_DPBUSD(acc[r][j], left, right[j]);
  }
}

QIR_INLINE void open_rows(const struct way *way, const struct qir_gemm_block *b, size_t i,
                          const uint8_t *rows[], __m512i acc[MAX_ROWS][4]) {
  UNROLL for (int r = 0; r < way->m; ++r) {
    rows[r] = b->rows[i + (size_t)r];
    UNROLL for (int j = 0; j < way->v; ++j) acc[r][j] = _mm512_loadu_si512(b->bias + j * NR);
  }
}

/* Loads the weights of a step, and points to the next. */
QIR_INLINE void take(const struct way *way, const char **panel, __m512i right[]) {
  __asm__ volatile("" : "+r"(*panel)); /* else all weights are loaded first, and spilled */
  UNROLL for (int j = 0; j < way->v; ++j) right[j] = _mm512_loadu_si512(*panel + j * NR * KR);
  *panel += way->v * NR * KR;
}

QIR_INLINE size_t deep(const struct qir_gemm_block *block, const struct way *way) {
  const struct qir_gemm_block b = *block; /* no store of a result can change it */
  const struct qir_avx512_code code = load_code(way, &b.code);
  const int m = way->m, v = way->v;
  const size_t some = (size_t)m, end = b.count - b.count % some, steps = b.depth / KR;
  struct target to = {b.y, b.y_stride, b.columns, b.multiplier, NULL};
  __m512i last[MAX_ROWS][4], acc[MAX_ROWS][4], right[4];
  UNROLL for (int r = 0; r < m; ++r) UNROLL for (int j = 0; j < v; ++j) last[r][j] =
      _mm512_setzero_si512();
  for (size_t i = 0; i < end; i += some) {
    const uint8_t *rows[MAX_ROWS];
    const char *panel = b.panel;
    open_rows(way, &b, i, rows, acc);
    UNROLL for (size_t p = 0; p < FIRST; ++p) {
      take(way, &panel, right);
      add_step(way, rows, p, right, acc);
    }
    /* The first time, nothing was summed yet: these bytes are written over. */
    finish_codes(&to, &code, m, v, way->full, way->bounds, last);
    if (i) to.y += some * to.stride;
    for (size_t p = FIRST; p < steps; ++p) {
      take(way, &panel, right);
      add_step(way, rows, p, right, acc);
    }
    UNROLL for (int r = 0; r < m; ++r) UNROLL for (int j = 0; j < v; ++j) last[r][j] = acc[r][j];
  }
  if (end) finish_codes(&to, &code, m, v, way->full, way->bounds, last);
  return end;
}

/* The same of so few weights that registers hold them all; the rows are whole. */
QIR_INLINE size_t held(const struct qir_gemm_block *block, int steps, const struct way *way) {
  enum { HELD = 24 /* vectors of weights */ };
  const struct qir_gemm_block b = *block;
  const struct qir_avx512_code code = load_code(way, &b.code);
  const int m = way->m, v = way->v;
  const size_t some = (size_t)m, end = b.count - b.count % some;
  struct target to = {b.y, b.y_stride, b.columns, b.multiplier, NULL};
  __m512i w[HELD], last[MAX_ROWS][4], acc[MAX_ROWS][4];
  UNROLL for (int p = 0; p < steps * v; ++p) w[p] =
      _mm512_loadu_si512((const char *)b.panel + p * NR * KR);
  UNROLL for (int r = 0; r < m; ++r) UNROLL for (int j = 0; j < v; ++j) last[r][j] =
      _mm512_setzero_si512();
  for (size_t i = 0; i < end; i += some) {
    const uint8_t *rows[MAX_ROWS];
    open_rows(way, &b, i, rows, acc);
    UNROLL for (int p = 0; p < steps; ++p) add_step(way, rows, (size_t)p, w + p * v, acc);
    finish_codes(&to, &code, m, v, way->full, way->bounds, last);
    if (i) to.y += some * to.stride;
    UNROLL for (int r = 0; r < m; ++r) UNROLL for (int j = 0; j < v; ++j) last[r][j] = acc[r][j];
  }
  if (end) finish_codes(&to, &code, m, v, way->full, way->bounds, last);
  return end;
}

typedef size_t (*rows_fn)(const struct qir_gemm_block *);
enum { ENDS = 4 }; /* of panels that are not full, and of full ones by their bounds */

#define ONE_TAP(name, call, m, v, flipped, end)                                                   \
  static __attribute__((noinline)) size_t name##_##flipped##end(const struct qir_gemm_block *b) { \
    const struct way way = {v, m, flipped, end > 0, end ? end : CLAMP};                           \
    return call;                                                                                  \
  }
#define ONE_TAPS(name, call, m, v)                                                    \
  ONE_TAP(name, call, m, v, 0, 0)                                                     \
  ONE_TAP(name, call, m, v, 0, 1)                                                     \
  ONE_TAP(name, call, m, v, 0, 2)                                                     \
  ONE_TAP(name, call, m, v, 0, 3)                                                     \
  ONE_TAP(name, call, m, v, 1, 0)                                                     \
  ONE_TAP(name, call, m, v, 1, 1)                                                     \
  ONE_TAP(name, call, m, v, 1, 2)                                                     \
  ONE_TAP(name, call, m, v, 1, 3)                                                     \
  static const rows_fn name[2][ENDS] = {{name##_00, name##_01, name##_02, name##_03}, \
                                        {name##_10, name##_11, name##_12, name##_13}};
ONE_TAPS(deep_1, deep(b, &way), 12, 1)
ONE_TAPS(deep_2, deep(b, &way), 6, 2)
ONE_TAPS(deep_3, deep(b, &way), 4, 3)
ONE_TAPS(deep_4, deep(b, &way), 3, 4)
ONE_TAPS(held_4x1, held(b, 4, &way), 4, 1)
ONE_TAPS(held_6x1, held(b, 6, &way), 4, 1)
ONE_TAPS(held_8x1, held(b, 8, &way), 4, 1)
ONE_TAPS(held_4x2, held(b, 4, &way), 4, 2)
ONE_TAPS(held_6x2, held(b, 6, &way), 4, 2)
ONE_TAPS(held_4x3, held(b, 4, &way), 2, 3)
ONE_TAPS(held_4x4, held(b, 4, &way), 1, 4)

/* By steps of four values, and vectors of columns. */
static const rows_fn (*one_tap(size_t steps, size_t v)) [ENDS] {
  switch (v) {
    case 1: return steps == 4 ? held_4x1 : steps == 6 ? held_6x1 : steps == 8 ? held_8x1 : deep_1;
    case 2: return steps == 4 ? held_4x2 : steps == 6 ? held_6x2 : deep_2;
    case 3: return steps == 4 ? held_4x3 : deep_3;
    default: return steps == 4 ? held_4x4 : deep_4;
  }
}

/* Computes rows of a block of one tap; returns how many. */
static size_t one_tap_rows(const struct qir_gemm_block *b) {
  enum { MOST = 128 /* steps: more weights do not stay in the first cache */ };
  const size_t steps = b->depth / KR;
  if (b->taps != 1 || b->shift || b->to_float || !b->below_one) return 0;
  if (steps < FIRST || steps > MOST) return 0;
  const int spans = qir_spans(&b->code), full = b->columns == b->width;
  const int end = !full ? 0 : !spans ? CLAMP : b->code.flip ? SPAN_I8 : SPAN_U8;
  return one_tap(steps, b->width / NR)[b->x_flip ? 1 : 0][end](b);
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
    size_t i = one_tap_rows(b);                                                              \
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
