#ifndef TWINS_H
#define TWINS_H

/*
 * Runs the kernels of every instruction set that this processor has, and their scalar twins, on
 * the same random cases, and compares the results with ==.
 *
 * Every buffer ends where a page ends that the processor refuses to read, so its first byte lies
 * anywhere, and a kernel that reads or writes further stops the program.
 */

#include <stddef.h>
#include <stdint.h>

#include "step.h"

/* ---- random numbers: never two in the arguments of one call, which have no order ---- */

size_t below(size_t n);
size_t between(size_t low, size_t high); /* both are possible */
int one_in(size_t n);
float real(float low, float high);

/* Bytes of one of some kinds: any, all alike, only the least and the greatest. */
void fill_bytes(uint8_t *x, size_t n);
/* Floats of [-scale, scale]; in one of three calls some are NaN, infinite, tiny or -0. */
void fill_floats(float *x, size_t n, float scale);

/* ---- memory ---- */

/* Lies at the end of a page; `bytes` may be 0. Freed by the end of the case. */
void *guarded(size_t bytes);
void *guarded_bytes(size_t n);
float *guarded_floats(size_t n, float scale);
int32_t *guarded_words(size_t n, int32_t most);

/* ---- cases ---- */

typedef int (*make_fn)(uint32_t isa, const void *how, struct qir_step *step);

struct twins {
  make_fn make;
  const void *how;
  void *buffers[6];
  int y;        /* which buffer is the result */
  size_t bytes; /* of the result */
  size_t item;  /* bytes of a float in it, 0 if it has none: NaNs are all alike */
};

/* What a difference is reported with. */
void describe(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Runs the scalar kernels, then each set's; a difference ends the program. */
void compare(struct twins *twins);
/* The same for what is no step: takes a result into the checksum. */
void result(void *y, size_t bytes, size_t item);

/* ---- families: each makes one case ---- */

void convolutions(void);
void depthwise(void);
void groups(void);
void matrices(void);
void dynamic(void);
void elements(void);
void tables(void);
void codes_of_floats(void);
void float_products(void);
void float_convolutions(void);
void float_functions(void);
void pools(void);
void rows(void);
void layers(void);
void casts(void);
void quantizers(void);
void arrays(void);
void histograms(void);

#endif
