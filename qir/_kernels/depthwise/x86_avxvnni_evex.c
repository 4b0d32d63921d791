#include "depthwise.h"

#if defined(QIR_X86)
#include "x86_avxvnni.h"

QIR_TARGET_BEGIN(QIR_AVXVNNI_EVEX_TARGET)

#define DOT QIR_DPBUSD_EVEX
#define DOT_FROM QIR_DPBUSD_EVEX_FROM
#define QIR_NAME qir_depthwise_avxvnni_evex
#include "x86_256_bytes.h"

QIR_TARGET_END
#endif
