#include "codes.h"

#if defined(QIR_X86)
#include <math.h>

QIR_TARGET_BEGIN("avx512f,avx512bw,avx512dq,avx512vl,fma,prefer-vector-width=512")

#define QIR_ISA_NAME(op) qir_codes_##op##_avx512
#include "both.h"

QIR_TARGET_END
#endif
