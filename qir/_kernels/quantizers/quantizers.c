#include "quantizers.h"

static const struct {
  uint32_t isa;
  qir_quantizer_fn run;
} table[] = {
#if defined(QIR_X86)
    {QIR_ISA_AVX512, qir_quantizer_avx512},
    {QIR_ISA_AVX2, qir_quantizer_avx2},
#endif
    {QIR_ISA_SCALAR, qir_quantizer_scalar},
};

enum { PART = 1 << 15 /* elements of a task */ };

struct quantizing {
  struct qir_quantizer how;
  qir_quantizer_fn run;
  int fault;
};

static void run(const void *params, void *const *buffers, void *scratch, long task) {
  (void)scratch;
  const struct quantizing *q = params;
  const size_t at = (size_t)task * PART, left = q->how.size - at;
  const int found = q->run(&q->how, (const float *)buffers[q->how.x] + at,
                           (uint8_t *)buffers[q->how.y] + at, left < PART ? left : PART);
  if (found && q->how.refuses) __atomic_store_n((int *)&q->fault, 1, __ATOMIC_RELAXED);
}

int qir_quantizer_make(uint32_t isa, const struct qir_quantizer *how, struct qir_step *step,
                       int **fault) {
  struct quantizing *q = qir_step_alloc(sizeof *q);
  if (!q) return 0;
  q->how = *how;
  q->run = QIR_SELECT(table, isa)->run;
  step->run = run;
  step->params = q;
  step->tasks = (long)((how->size + PART - 1) / PART);
  step->scratch = 0;
  *fault = &q->fault;
  return 1;
}
