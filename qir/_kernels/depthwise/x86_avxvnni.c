#include "depthwise.h"

#if defined(QIR_X86)
#include "x86_avxvnni.h"

QIR_TARGET_BEGIN(QIR_AVXVNNI_TARGET)

#define DOT QIR_DPBUSD_VEX
#define DOT_FROM QIR_DPBUSD_VEX_FROM
#define QIR_NAME qir_depthwise_avxvnni
#include "x86_256_bytes.h"

QIR_TARGET_END
#endif
