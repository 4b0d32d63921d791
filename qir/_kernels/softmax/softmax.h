#ifndef QIR_SOFTMAX_H
#define QIR_SOFTMAX_H

/*
 * Each row of quantized values by a table, as onnxruntime does: v[i] = table[x[i] - max(x) + 255],
 * sum = f32 sum of v in order, y[i] = clamp(int32(rne(v[i] * gain / sum)) + zero). The table is
 * of exponentials, scaled up as far as their sum allows, and gain is floor(1 / y_scale).
 *
 * In a row of one element v * gain is infinite; its conversion gives INT_MIN, to which zero is
 * added modulo 2^32, and u8 keeps the low byte: so does onnxruntime up to 1.31.
 *
 * With `wide`, v, gain and sum are multiplied and divided in f64, as onnxruntime 1.32 does: nothing
 * overflows, and values beyond the range of y saturate.
 *
 * With `inverse`, gain is y_scale: y[i] = clamp(floor(v[i] * (1 / (sum * gain)) + 0.5) + zero), the
 * half added exactly, as XNNPACK does.
 */

#include "requant.h"
#include "step.h"

struct qir_softmax {
  size_t rows, width;
  float table[256];
  float gain;
  uint8_t x_flip, wide, inverse;
  struct qir_code code;
};

/* Makes a step; 0 if there is no memory. x and y are buffers. */
int qir_softmax_make(uint32_t isa, const struct qir_softmax *softmax, int x, int y,
                     struct qir_step *step);

#endif
