#include "epilogue.h"

#include <string.h>

#include "step.h"

static const struct {
  uint32_t isa;
  qir_epilogue_fn run;
} table[] = {
#if defined(QIR_X86)
    {QIR_ISA_AVX512, qir_epilogue_avx512},
    {QIR_ISA_AVX2, qir_epilogue_avx2},
#endif
    {QIR_ISA_SCALAR, qir_epilogue_scalar},
};

qir_epilogue_fn qir_epilogue_select(uint32_t isa) { return QIR_SELECT(table, isa)->run; }

enum { ARRAYS = 7 }; /* of four bytes a column */

static size_t bytes(size_t columns) { return qir_round_up(columns * sizeof(float), 64); }

size_t qir_epilogue_size(size_t columns) { return ARRAYS * bytes(columns); }

struct qir_epilogue qir_epilogue_copy(const struct qir_epilogue *how, size_t columns,
                                      void *memory) {
  struct qir_epilogue made = *how;
  const float **floats[] = {&made.steps, &made.share, &made.factor, &made.bias};
  const int32_t **integers[] = {&made.fixed, &made.shift, &made.away};
  char *to = memory;
  for (int i = 0; i < 4; ++i, to += bytes(columns))
    if (*floats[i]) *floats[i] = memcpy(to, *floats[i], columns * sizeof(float));
  for (int i = 0; i < 3; ++i, to += bytes(columns))
    if (*integers[i]) *integers[i] = memcpy(to, *integers[i], columns * sizeof(int32_t));
  return made;
}
