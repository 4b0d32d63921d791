/*
 * Products of narrow groups by an instruction that adds those of a word of 32 bits: of two 16-bit
 * values, or of four bytes. What includes this defines
 *
 *   WORDS, LANES, MOST          words of a vector, values of a word, pixels at once
 *   VEC, LOAD, PERMUTE          vectors of words, in aligned memory; by an index of words
 *   DOT(sum, left, right)       adds to each sum the products of a word
 *   finish(run, at, sums)       stores a pixel: channel LANES * i + t is word i of sums t
 *   QIR_NAME                    the kernel
 */

#define UNROLL _Pragma("GCC unroll 16")

enum { BLOCK = WORDS * 4 /* bytes of weights that a vector holds */ };

/* Sums of m pixels stay in registers; LANES loads of weights and m of x feed LANES * m products. */
QIR_INLINE void accumulate(const struct qir_grouped_run *run, size_t ox, int m, int turned,
                           VEC acc[MOST][LANES]) {
  UNROLL for (int t = 0; t < LANES; ++t) {
    const VEC bias = LOAD(run->bias + t * WORDS);
    UNROLL for (int r = 0; r < m; ++r) acc[r][t] = bias;
  }
  const char *w = run->weights, *line = (const char *)run->x + ox * run->pixel;
  const size_t steps = turned ? run->steps : 1, pixel = run->pixel;
  for (size_t ky = 0; ky < run->kh; ++ky, line += run->line) {
    const char *x = line;
    for (size_t kx = 0; kx < run->kw; ++kx, x += run->tap)
      for (size_t s = 0; s < steps; ++s, w += LANES * BLOCK) {
        const VEC index = LOAD(run->index + s * WORDS);
        VEC left[MOST];
        UNROLL for (int r = 0; r < m; ++r) {
          left[r] = LOAD(x + (size_t)r * pixel);
          if (turned) left[r] = PERMUTE(left[r], index);
        }
        UNROLL for (int t = 0; t < LANES; ++t) {
          const VEC right = LOAD(w + t * BLOCK);
          UNROLL for (int r = 0; r < m; ++r) DOT(acc[r][t], left[r], right);
        }
      }
  }
}

QIR_INLINE void tile(const struct qir_grouped_run *any, size_t ox, int m, int turned) {
  const struct qir_grouped_run run = *any; /* no store of a result can change it */
  VEC acc[MOST][LANES];
  accumulate(&run, ox, m, turned, acc);
  UNROLL for (int r = 0; r < m; ++r) finish(&run, (ox + (size_t)r) * run.y_stride, acc[r]);
}

#define TILE(name, m)                                                                        \
  static __attribute__((noinline)) void name(const struct qir_grouped_run *run, size_t ox) { \
    if (run->steps == 1)                                                                     \
      tile(run, ox, m, 0);                                                                   \
    else                                                                                     \
      tile(run, ox, m, 1);                                                                   \
  }
TILE(tile_most, MOST)
TILE(tile_2, 2)
TILE(tile_1, 1)

void QIR_NAME(const struct qir_grouped_run *run) {
  size_t ox = 0;
  for (; ox + MOST <= run->width; ox += MOST) tile_most(run, ox);
  for (; ox + 2 <= run->width; ox += 2) tile_2(run, ox);
  if (ox < run->width) tile_1(run, ox);
}
