#ifndef QIR_CODES_H
#define QIR_CODES_H

/*
 * Codes of whole arrays: from reals or sums, to reals, through a table, and as dense bits.
 *
 * What is computed is what qir/numerics/definition.py says, operation by operation; nothing here
 * depends on how an array is cut into rows.
 */

#include <stddef.h>
#include <stdint.h>

#include "isa.h"

/* Rows of `inner` elements; each `run` of them shares parameters, run after run from `first`. */
struct qir_rows {
  size_t rows, inner, run;
  const int64_t *first;
};

enum qir_round {
  QIR_ROUND_EVEN,
  QIR_ROUND_AWAY,
  QIR_ROUND_HALF_UP,
  QIR_ROUND_HALF_DOWN,
  QIR_ROUND_UP,
  QIR_ROUND_ZERO,
  QIR_ROUND_FLOOR,
  QIR_ROUND_CEIL,
};

/* Parameters are arrays of the type that is computed in; those that may be NULL are left out. */
struct qir_encode {
  const void *minus;  /* or NULL: taken from x first */
  const void *factor; /* multiplied with, or divided by */
  const void *before; /* or NULL: added before rounding */
  const int32_t *after, *nan;
  int64_t low, high;
  enum qir_round round;
  /* Where not NULL, in place of rounding: codes[k] where x is not below k of the steps. */
  const void *steps;
  const int32_t *codes;
  size_t count;
  int divide;
  int sums;     /* x is int32_t, not the type that is computed in */
  int itemsize; /* of a code: 1, 2, 4; bounds below 2^17 but for 4 */
};

enum qir_carrier { QIR_U8, QIR_I8, QIR_U16, QIR_I16, QIR_U32, QIR_I32 };

struct qir_decode {
  const void *table; /* or NULL: what bytes stand for, 256 of them; `carrier` is QIR_U8 */
  const void *zero;  /* or NULL: taken from a code first */
  const void *scale; /* multiplied with */
  const void *minus; /* or NULL: taken away after that */
  const void *plus;  /* or NULL: added last */
  enum qir_carrier carrier;
};

enum { QIR_CHUNK = 512 };

/* At most QIR_CHUNK elements; `many`: each has parameters of its own, from `at` on. */
typedef int (*qir_encode_function)(const struct qir_encode *how, const void *x, void *codes,
                                   size_t n, size_t at, int many);
typedef void (*qir_decode_function)(const struct qir_decode *how, const void *codes, void *y,
                                    size_t n, size_t at, int many);

#define QIR_CODES_DECLARE(name)                                                                    \
  int qir_codes_encode_f32_##name(const struct qir_encode *, const void *, void *, size_t, size_t, \
                                  int);                                                            \
  int qir_codes_encode_f64_##name(const struct qir_encode *, const void *, void *, size_t, size_t, \
                                  int);                                                            \
  void qir_codes_decode_f32_##name(const struct qir_decode *, const void *, void *, size_t,        \
                                   size_t, int);                                                   \
  void qir_codes_decode_f64_##name(const struct qir_decode *, const void *, void *, size_t,        \
                                   size_t, int);

QIR_CODES_DECLARE(scalar)
#if defined(QIR_X86)
QIR_CODES_DECLARE(avx2)
QIR_CODES_DECLARE(avx512)
#endif

/* Codes of all rows, computed in float or double; says whether there was a NaN. */
int qir_codes_encode(const struct qir_encode *how, const struct qir_rows *rows, const void *x,
                     void *codes, int wide, uint32_t isa);

/* How sums become codes in whole numbers; see `fixed` in codes.c. */
struct qir_fixed {
  const int32_t *multiplier, *left, *right; /* left and right below 31 */
  const int32_t *zero;
  int64_t low, high;
  int twice; /* rounded after the multiplication and after the shift, or once */
  int itemsize;
};

void qir_codes_fixed(const struct qir_fixed *how, const struct qir_rows *rows, const int32_t *acc,
                     void *codes);

void qir_codes_decode(const struct qir_decode *how, const struct qir_rows *rows, const void *codes,
                      void *y, int wide, uint32_t isa);

/* y[i] = table[codes[i]], codes as unsigned bytes or pairs of them, entries of 1, 2, 4 or 8. */
void qir_codes_lookup(const void *codes, int itemsize, const void *table, int entry, void *y,
                      size_t n);

/* -- bits.c ------------------------------------------------------------------------------------ */

/* Codes of `bits` bits, each in `itemsize` bytes, signed or not. */
struct qir_bits {
  int bits, itemsize, is_signed;
  int high; /* filled from the high end of each byte */
};

/* Rows of n codes as rows of `width` bytes, zeros after the last bit; 0 if a code has more bits. */
int qir_codes_pack(const struct qir_bits *how, const void *codes, uint8_t *bytes, size_t rows,
                   size_t n, size_t width);

void qir_codes_unpack(const struct qir_bits *how, const uint8_t *bytes, void *codes, size_t rows,
                      size_t n, size_t width);

/* The same bits as codes that are signed, or not; 0 if a code has more bits. */
int qir_codes_recode(const struct qir_bits *how, const void *codes, void *y, size_t n,
                     int to_signed);

#endif
