/*
 * Windows of one channel each by an instruction that adds the products of a word of 32 bits: of two
 * 16-bit values, or of four bytes. What includes this defines
 *
 *   WORDS, LANES, VECTORS   words of a vector, values of a word, vectors of a block's sums
 *   VEC, LOAD               vectors of words
 *   DOT(sum, left, right)   adds to each sum the products of a word
 *   PAIRS(sum, left, right) the same where products of two values saturate in 16 bits
 *   gather(taps, at, n, flip, x)  puts the values of LANES taps of n channels in words
 *   finish(run, at, c, n, sums)   stores the sums of n channels
 */

#define UNROLL _Pragma("GCC unroll 16")

enum { BLOCK = WORDS * VECTORS /* channels */, SIZE = WORDS * 4 /* bytes of a vector */ };

/* The n channels from c on of pixel ox. */
QIR_INLINE void pixel(const struct qir_depthwise_run *run, size_t ox, size_t c, size_t n,
                      int pairs) {
  const char *w = (const char *)run->weights + c * run->groups * 4;
  const uint8_t *const *taps = run->taps;
  const size_t at = ox * run->step + c;
  VEC sums[VECTORS];
  UNROLL for (int i = 0; i < VECTORS; ++i) sums[i] = LOAD(run->bias + c + i * WORDS);
  for (size_t g = 0; g < run->groups; ++g, taps += LANES, w += VECTORS * SIZE) {
    VEC x[VECTORS];
    gather(taps, at, n, run->x_flip, x);
    UNROLL for (int i = 0; i < VECTORS; ++i) if (pairs) PAIRS(sums[i], x[i], LOAD(w + i * SIZE));
    else DOT(sums[i], x[i], LOAD(w + i * SIZE));
  }
  finish(run, ox * run->channels + c, c, n, sums);
}

static void windows(const struct qir_depthwise_run *any) {
  const struct qir_depthwise_run run = *any; /* no store of a result can change it */
  for (size_t ox = 0; ox < run.width; ++ox)
    for (size_t c = 0; c < run.channels; c += BLOCK) {
      const size_t n = qir_depthwise_left(&run, c);
      if (run.pairs)
        pixel(&run, ox, c, n, 1);
      else if (n >= BLOCK)
        pixel(&run, ox, c, BLOCK, 0);
      else
        pixel(&run, ox, c, n, 0);
    }
}
