#include "gemm.h"

#if defined(QIR_X86)
#include "x86_avxvnni.h"

QIR_TARGET_BEGIN(QIR_AVXVNNI_EVEX_TARGET)

enum { KR = 4 };
#define DOT(sum, left, right) QIR_DPBUSD_EVEX(sum, left, right)
#define QIR_NAME qir_gemm_avxvnni_evex
#include "x86_256.h"

QIR_TARGET_END
#endif
