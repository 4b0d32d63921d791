#ifndef QIR_RECURRENT_H
#define QIR_RECURRENT_H

/*
 * LSTM and GRU layers over f32, computed in f64; what they give is rounded once. A sum begins with
 * the biases and takes x, then h, each in order, by fused products: the same bytes from every
 * kernel. The sums of a GRU's new state begin anew where its reset gate comes between. Peepholes of
 * an LSTM are added last: those of i and f times the old c, that of o times the new one.
 *
 * x is [steps, batch, width], or [batch, steps, width]; y has an axis of directions before batch,
 * or before the last. Gates are in the order of ONNX: i o f c, and z r h.
 */

#include "isa.h"
#include "step.h"

struct qir_recurrent {
  int gates;       /* 4: LSTM, 3: GRU */
  int reset_after; /* GRU: the reset gate scales the product of h with its bias */
  int back;        /* the only direction runs from the end */
  size_t ways;     /* directions; the second of two runs from the end */
  int batch_first;
  size_t steps, batch, width, hidden;
  const float *w, *r;    /* [ways, gates * hidden, width or hidden] */
  const float *bias;     /* [ways, 2 * gates * hidden]: of w, then of r */
  const float *peephole; /* [ways, 3 * hidden]: what i, o and f see of c, or NULL; LSTM alone */
  int x, h0, c0;         /* buffers; h0 and c0 may be -1 */
  int y, h, c;           /* c: LSTM alone */
};

/* sums[j] += the sum over k of x[k] * w[k * n + j], k in order. */
typedef void (*qir_recurrent_add)(const double *x, size_t k, const float *w, size_t n,
                                  size_t columns, double *sums);
typedef void (*qir_recurrent_apply)(double *x, size_t n);

struct qir_recurrent_kernel {
  const char *name;
  uint32_t isa;
  qir_recurrent_add add;
  qir_recurrent_apply sigmoid, tanh;
};

/* Kernels of this build, best first; the last is scalar and always runs. */
extern const struct qir_recurrent_kernel qir_recurrent_kernels[];

int qir_recurrent_make(uint32_t isa, const struct qir_recurrent *r, struct qir_step *step);

#endif
