/*
 * The tiles of a product, for the vectors of the file that includes this: it defines VEC, NR, VECS
 * (of a panel), load(), store(), zero(), set1(), fma(), add(), max() and min().
 *
 * Sums of m rows and v vectors stay in registers; v loads and m broadcasts feed m * v products.
 */

#include <string.h>

enum { LINE = 16 /* floats */ };

#define UNROLL _Pragma("GCC unroll 16")

static inline __attribute__((always_inline)) void tile(const struct qir_sgemm_block *b, size_t i,
                                                       int m, int v) {
  VEC acc[8][VECS];
  UNROLL for (int r = 0; r < m; ++r) UNROLL for (int j = 0; j < v; ++j) acc[r][j] = ZERO();
  const float *w = b->panel, *rows[8];
  UNROLL for (int r = 0; r < m; ++r) rows[r] = b->a + (i + (size_t)r) * b->a_row;
  for (size_t p = 0; p < b->depth; ++p, w += NR * v) {
    VEC right[VECS];
    if (p % LINE == 0) /* of the next tile: its rows are short runs far apart */
      UNROLL for (int r = 0; r < m; ++r) __builtin_prefetch(rows[r] + (size_t)m * b->a_row + p);
    UNROLL for (int j = 0; j < v; ++j) right[j] = LOAD(w + j * NR);
    UNROLL for (int r = 0; r < m; ++r) {
      const VEC left = SET1(rows[r][p]);
      UNROLL for (int j = 0; j < v; ++j) acc[r][j] = FMA(left, right[j], acc[r][j]);
    }
  }
  const VEC low = SET1(b->bounds.low), high = SET1(b->bounds.high);
  UNROLL for (int r = 0; r < m; ++r) {
    float *y = b->y + (i + (size_t)r) * b->y_row;
    UNROLL for (int j = 0; j < v; ++j) {
      if (b->columns <= (size_t)j * NR) break;
      const size_t left = b->columns - (size_t)j * NR;
      VEC sum = acc[r][j];
      if (!b->first) sum = ADD(LOAD_FIRST(y + j * NR, left), sum);
      if (b->last) {
        if (b->row_bias) sum = ADD(sum, SET1(b->row_bias[i + (size_t)r]));
        if (b->column_bias) sum = ADD(sum, LOAD_FIRST(b->column_bias + j * NR, left));
        if (b->bounds.bounded) sum = MIN(high, MAX(low, sum)); /* of NaN, the second operand */
      }
      STORE_FIRST(y + j * NR, left, sum);
    }
  }
}

/* One function for each shape of tile keeps the compiler's allocation of registers local. */
#define TILE(m, v)                                                                      \
  static __attribute__((noinline)) void tile_##m##x##v(const struct qir_sgemm_block *b, \
                                                       size_t i) {                      \
    tile(b, i, m, v);                                                                   \
  }
#define TILES(v, m0, m1, m2)                                                                  \
  TILE(m0, v)                                                                                 \
  TILE(m1, v) TILE(m2, v) TILE(1, v) static void panel_##v(const struct qir_sgemm_block *b) { \
    size_t i = 0;                                                                             \
    for (; i + m0 <= b->count; i += m0) tile_##m0##x##v(b, i);                                \
    for (; i + m1 <= b->count; i += m1) tile_##m1##x##v(b, i);                                \
    for (; i + m2 <= b->count; i += m2) tile_##m2##x##v(b, i);                                \
    for (; i < b->count; ++i) tile_1x##v(b, i);                                               \
  }

static inline __attribute__((always_inline)) void taps(const struct qir_taps *how, float *y,
                                                       size_t i, size_t n, int v) {
  VEC acc[4];
  UNROLL for (int j = 0; j < v; ++j) acc[j] = ZERO();
  for (size_t t = 0; t < how->taps; ++t) {
    const VEC weight = SET1(how->weight[t]);
    const float *x = how->x + how->at[t] + i;
    UNROLL for (int j = 0; j < v; ++j) acc[j] = FMA(weight, LOAD(x + j * NR), acc[j]);
  }
  const VEC bias = SET1(how->bias), low = SET1(how->bounds.low), high = SET1(how->bounds.high);
  UNROLL for (int j = 0; j < v; ++j) {
    if (n <= i + (size_t)j * NR) break;
    VEC sum = ADD(acc[j], bias);
    if (how->bounds.bounded) sum = MIN(high, MAX(low, sum));
    STORE_FIRST(y + i + j * NR, n - i - (size_t)j * NR, sum);
  }
}

static inline __attribute__((always_inline)) void all_taps(const struct qir_taps *how, float *y,
                                                           size_t n) {
  size_t i = 0;
  for (; i + 2 * NR < n; i += 4 * NR) taps(how, y, i, n, 4);
  for (; i + NR < n; i += 2 * NR) taps(how, y, i, n, 2);
  if (i < n) taps(how, y, i, n, 1);
}
