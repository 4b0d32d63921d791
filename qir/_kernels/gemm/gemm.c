#include "gemm.h"

#include <string.h>

#define QIR_GEMM_KERNEL(name, isa, nr, nv, kr, widened) {#name, isa, name, nr, nv, kr, widened},
const struct qir_gemm_kernel qir_gemm_kernels[] = {
#include "kernels.inc"
};
#undef QIR_GEMM_KERNEL
const size_t qir_gemm_kernel_count = sizeof qir_gemm_kernels / sizeof *qir_gemm_kernels;

static size_t round_up(size_t value, size_t step) { return (value + step - 1) / step * step; }

size_t qir_gemm_width(const struct qir_gemm_kernel *kernel, size_t n, size_t j) {
  const size_t full = kernel->nr * kernel->nv;
  return n - j < full ? round_up(n - j, kernel->nr) : full;
}

size_t qir_gemm_packed_size(const struct qir_gemm_kernel *kernel, size_t n, size_t k) {
  const size_t columns = round_up(n, kernel->nr), values = columns * round_up(k, kernel->kr);
  return round_up(values * (kernel->widened ? 2 : 1), 64) +
         2 * round_up(columns * sizeof(int32_t), 64);
}

/*
 * Where column j of a panel is stored. Four vectors of 32-bit sums are narrowed to bytes by
 * instructions that work in 128-bit lanes, so in a panel of four vectors of sixteen, vector v
 * holds in lane l the columns 16 l + 4 v onwards, and the bytes come out in order.
 */
size_t qir_gemm_place(size_t width, int to_float, size_t j) {
  if (width != 64 || to_float) return j;
  return j / 4 % 4 * 16 + j / 16 * 4 + j % 4;
}

static void store(const struct qir_gemm_kernel *kernel, char *panel, size_t at, int8_t value) {
  if (kernel->widened)
    ((int16_t *)panel)[at] = value;
  else
    ((int8_t *)panel)[at] = value;
}

void qir_gemm_pack(const struct qir_gemm_kernel *kernel, const struct qir_gemm_weights *weights,
                   const int32_t *bias, int32_t x_zero, const float *multiplier,
                   size_t multiplier_count, int to_float, void *memory,
                   struct qir_gemm_packed *packed) {
  const size_t kr = kernel->kr, n = weights->n, columns = round_up(n, kernel->nr);
  const size_t bytes = kernel->widened ? 2 : 1;
  packed->n = n;
  packed->k = weights->taps / weights->joined * round_up(weights->joined * weights->depth, kr);
  packed->panels = memory;
  packed->bias = (int32_t *)(packed->panels + round_up(columns * packed->k * bytes, 64));
  packed->multiplier = (float *)((char *)packed->bias + round_up(columns * sizeof(int32_t), 64));
  memset(memory, 0, qir_gemm_packed_size(kernel, n, packed->k));
  for (size_t j = 0; j < n; ++j) {
    const size_t first = j / (kernel->nr * kernel->nv) * (kernel->nr * kernel->nv);
    const size_t width = qir_gemm_width(kernel, n, first);
    const size_t to = qir_gemm_place(width, to_float, j - first);
    char *panel = packed->panels + first * packed->k * bytes;
    const int8_t *column = weights->data + j * weights->column;
    uint32_t sum = 0;
    size_t k = 0;
    for (size_t t = 0; t < weights->taps; ++t) {
      if (t % weights->joined == 0) k = round_up(k, kr);
      for (size_t p = 0; p < weights->depth; ++p, ++k) {
        const int8_t value = column[t * weights->tap + p * weights->value];
        store(kernel, panel, k / kr * width * kr + to * kr + k % kr, value);
        sum += (uint32_t)(int32_t)value;
      }
    }
    packed->bias[first + to] = (int32_t)((bias ? (uint32_t)bias[j] : 0) - (uint32_t)x_zero * sum);
    packed->multiplier[first + to] = multiplier[multiplier_count == 1 ? 0 : j];
  }
}

void qir_gemm_point(const struct qir_gemm_kernel *kernel, const struct qir_gemm_packed *packed,
                    size_t j, struct qir_gemm_block *block) {
  const size_t bytes = kernel->widened ? 2 : 1;
  block->panel = packed->panels + j * packed->k * bytes;
  block->bias = packed->bias + j;
  block->multiplier = packed->multiplier + j;
  block->width = qir_gemm_width(kernel, packed->n, j);
  block->columns = packed->n - j < block->width ? packed->n - j : block->width;
#if defined(QIR_FAULT_TAIL) /* never in a build to use: tests/kernels/test_faults.py plants it */
  if (block->columns < block->width) --block->columns;
#endif
}
