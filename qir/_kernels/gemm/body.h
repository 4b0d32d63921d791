/*
 * Rows times a panel by an instruction that adds the products of a word of 32 bits: of two 16-bit
 * values, or of four bytes. What includes this defines
 *
 *   NR, KR                     columns of a vector, values of a word
 *   VEC, LOAD, SET1, ADD, MUL, XOR
 *                              vectors of words
 *   DOT(sum, left, right)      adds to each sum the products of a word
 *   finish(b, i, v, sums)      stores row i of v vectors
 *
 * and uses TILES(v, ...) for each number of vectors, the largest number of rows first.
 */

#define UNROLL _Pragma("GCC unroll 16")

enum { ROWS = 12, VECS = 2 /* at most */, WORD = 4 /* bytes */ };

/* Sums of m rows and v vectors: v loads and m broadcasts feed m * v products. */
QIR_INLINE void accumulate(const struct qir_gemm_block *b, size_t i, int m, int v, int flipped,
                           VEC acc[ROWS][VECS]) {
  UNROLL for (int j = 0; j < v; ++j) {
    const VEC bias = LOAD(b->bias + j * NR);
    UNROLL for (int r = 0; r < m; ++r) acc[r][j] = bias;
  }
  if (b->shift) {
    UNROLL for (int r = 0; r < m; ++r) {
      const VEC shift = SET1(b->shift[i + (size_t)r]);
      UNROLL for (int j = 0; j < v; ++j) acc[r][j] =
          ADD(acc[r][j], b->gain ? MUL(shift, LOAD(b->gain + j * NR)) : shift);
    }
  }
  const VEC flip = SET1((int32_t)0x80808080);
  const char *w = b->panel;
  const size_t bytes = b->depth * (WORD / KR);
  for (size_t t = 0; t < b->taps; ++t) {
    const char *rows[ROWS];
    UNROLL for (int r = 0; r < m; ++r) rows[r] = b->rows[t * b->row_stride + i + (size_t)r];
    for (size_t p = 0; p < bytes; p += WORD, w += NR * WORD * v) {
      VEC right[VECS];
      UNROLL for (int j = 0; j < v; ++j) right[j] = LOAD(w + j * NR * WORD);
      UNROLL for (int r = 0; r < m; ++r) {
        int32_t word;
        memcpy(&word, rows[r] + p, sizeof word);
        VEC left = SET1(word);
        if (flipped) left = XOR(left, flip);
        UNROLL for (int j = 0; j < v; ++j) DOT(acc[r][j], left, right[j]);
      }
    }
  }
}

/* Adds the products of `count` words of a row to as many vectors of sums, v of each. */
QIR_INLINE void add_words(const char *row, const char *w, int count, int v, VEC flip,
                          VEC parts[][VECS]) {
  UNROLL for (int k = 0; k < count; ++k) {
    int32_t word;
    memcpy(&word, row + k * WORD, sizeof word);
    const VEC left = XOR(SET1(word), flip);
    UNROLL for (int j = 0; j < v; ++j) {
      const VEC right = LOAD(w + (k * v + j) * NR * WORD);
      DOT(parts[k][j], left, right);
    }
  }
}

/* The sums of one row: of every fourth word at first, as each waits for the one before. */
QIR_INLINE void accumulate_row(const struct qir_gemm_block *b, size_t i, int v, int32_t flips,
                               VEC acc[ROWS][VECS]) {
  enum { PARTS = 4 };
  const VEC start = SET1(b->shift ? b->shift[i] : 0), flip = SET1(flips);
  VEC parts[PARTS][VECS];
  UNROLL for (int j = 0; j < v; ++j) {
    const VEC shift = b->gain ? MUL(start, LOAD(b->gain + j * NR)) : start;
    parts[0][j] = ADD(LOAD(b->bias + j * NR), shift);
    UNROLL for (int k = 1; k < PARTS; ++k) parts[k][j] = SET1(0);
  }
  const char *w = b->panel;
  const size_t bytes = b->depth * (WORD / KR), step = (size_t)v * NR; /* bytes of w to one of x */
  for (size_t t = 0; t < b->taps; ++t, w += bytes * step) {
    const char *row = b->rows[t * b->row_stride + i];
    size_t p = 0;
    for (; p + PARTS * WORD <= bytes; p += PARTS * WORD)
      add_words(row + p, w + p * step, PARTS, v, flip, parts);
    for (; p < bytes; p += WORD) add_words(row + p, w + p * step, 1, v, flip, parts);
  }
  UNROLL for (int j = 0; j < v; ++j) acc[0][j] =
      ADD(ADD(parts[0][j], parts[1][j]), ADD(parts[2][j], parts[3][j]));
}

QIR_INLINE void tile(const struct qir_gemm_block *any, size_t i, int m, int v) {
  const struct qir_gemm_block b = *any; /* no store of a result can change it */
  VEC acc[ROWS][VECS];
  if (m == 1)
    accumulate_row(&b, i, v, KR == 4 && b.x_flip ? (int32_t)0x80808080 : 0, acc);
  else if (KR == 4 && b.x_flip)
    accumulate(&b, i, m, v, 1, acc);
  else
    accumulate(&b, i, m, v, 0, acc);
  UNROLL for (int r = 0; r < m; ++r) finish(&b, i + (size_t)r, v, acc[r]);
}

/* One function for each shape of tile keeps the compiler's allocation of registers local. */
#define TILE(m, v)                                                                                 \
  static __attribute__((noinline)) void tile_##m##x##v(const struct qir_gemm_block *b, size_t i) { \
    tile(b, i, m, v);                                                                              \
  }
#define TILES(v, m0, m1, m2)                                                                 \
  TILE(m0, v)                                                                                \
  TILE(m1, v) TILE(m2, v) TILE(1, v) static void panel_##v(const struct qir_gemm_block *b) { \
    size_t i = 0;                                                                            \
    for (; i + m0 <= b->count; i += m0) tile_##m0##x##v(b, i);                               \
    for (; i + m1 <= b->count; i += m1) tile_##m1##x##v(b, i);                               \
    for (; i + m2 <= b->count; i += m2) tile_##m2##x##v(b, i);                               \
    for (; i < b->count; ++i) tile_1x##v(b, i);                                              \
  }
