/*
 * Windows of 3 by 3 that move by one or two along a line and its padding; included after body.h.
 * A column of the input is part of up to three windows, and its values are put in words once. The
 * sums of three windows and a column fill the 16 registers that AVX2 has. Beside what body.h needs,
 *
 *   DOT_FROM(sum, left, right)  is DOT with a vector in memory
 *   column(lines, n, flip, x)   puts the values of three lines in the words of COLUMN vectors
 *
 * and QIR_NAME, the kernel, are defined.
 */

enum { COLUMN = 4 };

/* A block of n channels from c on. */
struct block {
  const struct qir_depthwise_run *run;
  size_t c, n;
};

/* Column k of those that windows lie on, of which the first and the last may be padding. */
QIR_INLINE void column_at(const struct block *b, size_t k, VEC x[COLUMN]) {
  const struct qir_depthwise_run *run = b->run;
  const size_t from = k - run->before; /* wraps where it is padding */
  const uint8_t *const blank = run->blank + b->c, *lines[3] = {blank, blank, blank};
  if (__builtin_expect(from < run->line, 1))
    for (int i = 0; i < 3; ++i) lines[i] = run->taps[i] + from * run->channels + b->c;
  column(lines, b->n, run->x_flip, x);
}

QIR_INLINE void opening(const struct block *b, VEC sums[VECTORS]) {
  const int32_t *bias = b->run->bias + b->c;
  __asm__("" : "+r"(bias)); /* as in `add` */
  UNROLL for (int i = 0; i < VECTORS; ++i) sums[i] = LOAD(bias + i * WORDS);
}

/* Adds the products of a column by column kx of the window. */
QIR_INLINE void add(const struct block *b, VEC sums[VECTORS], const VEC x[COLUMN], int kx) {
  const char *w = (const char *)b->run->weights + b->c * b->run->groups * 4 + kx * COLUMN * SIZE;
  __asm__("" : "+r"(w)); /* else gcc keeps an address for each vector, and those in memory */
  UNROLL for (int i = 0; i < COLUMN; ++i) DOT_FROM(sums[i % VECTORS], x[i], w + i * SIZE);
}

QIR_INLINE void finish_pixel(const struct block *b, size_t ox, const VEC sums[VECTORS]) {
  finish(b->run, ox * b->run->channels + b->c, b->c, b->n, sums);
}

QIR_INLINE void move(VEC to[VECTORS], const VEC from[VECTORS]) {
  UNROLL for (int i = 0; i < VECTORS; ++i) to[i] = from[i];
}

QIR_INLINE void by_one(const struct block *b) {
  VEC x[COLUMN], s0[VECTORS], s1[VECTORS], s2[VECTORS];
  opening(b, s0);
  opening(b, s1);
  column_at(b, 0, x);
  add(b, s0, x, 0);
  column_at(b, 1, x);
  add(b, s0, x, 1);
  add(b, s1, x, 0);
  for (size_t ox = 0; ox < b->run->width; ++ox) {
    column_at(b, ox + 2, x);
    add(b, s0, x, 2);
    add(b, s1, x, 1);
    opening(b, s2);
    add(b, s2, x, 0);
    finish_pixel(b, ox, s0);
    move(s0, s1);
    move(s1, s2);
  }
}

QIR_INLINE void by_two(const struct block *b) {
  VEC x[COLUMN], s0[VECTORS], s1[VECTORS];
  opening(b, s0);
  column_at(b, 0, x);
  add(b, s0, x, 0);
  for (size_t ox = 0; ox < b->run->width; ++ox) {
    column_at(b, 2 * ox + 1, x);
    add(b, s0, x, 1);
    column_at(b, 2 * ox + 2, x);
    add(b, s0, x, 2);
    opening(b, s1);
    add(b, s1, x, 0);
    finish_pixel(b, ox, s0);
    move(s0, s1);
  }
}

static __attribute__((noinline)) void slide(const struct qir_depthwise_run *any, size_t c) {
  const struct qir_depthwise_run run = *any; /* no store of a result can change it */
  const size_t n = qir_depthwise_left(&run, c);
  const struct block part = {&run, c, n}, whole = {&run, c, BLOCK};
  if (run.slides == 1 && n >= BLOCK)
    by_one(&whole);
  else if (run.slides == 1)
    by_one(&part);
  else if (n >= BLOCK)
    by_two(&whole);
  else
    by_two(&part);
}

void QIR_NAME(const struct qir_depthwise_run *run) {
  if (!run->slides) {
    windows(run);
    return;
  }
  for (size_t c = 0; c < run->channels; c += BLOCK) slide(run, c);
}
