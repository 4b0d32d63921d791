#include "codes.h"

#if defined(QIR_X86)
#include <math.h>

QIR_TARGET_BEGIN("avx2,fma")

#define QIR_ISA_NAME(op) qir_codes_##op##_avx2
#include "both.h"

QIR_TARGET_END
#endif
