#include "isa.h"

const struct qir_isa_name qir_isa_names[] = {
#if defined(QIR_ARM64)
    {"neondot", QIR_ISA_NEONDOT, 0},
    {"neon", QIR_ISA_NEON, 0},
#else
    {"avx512vbmi", QIR_ISA_AVX512VBMI, 0}, {"avx512vnni", QIR_ISA_AVX512VNNI, 0},
    {"avx512", QIR_ISA_AVX512, 0},         {"avxvnni_evex", QIR_ISA_AVXVNNI_EVEX, 1},
    {"avxvnni", QIR_ISA_AVXVNNI, 1},       {"avx2", QIR_ISA_AVX2, 0},
#endif
    {"scalar", QIR_ISA_SCALAR, 0},
};
const size_t qir_isa_name_count = sizeof qir_isa_names / sizeof *qir_isa_names;

#if defined(QIR_X86)
#include <cpuid.h>

static uint64_t saved_state(void) {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return ((uint64_t)high << 32) | low;
}

static int has(uint32_t word, int bit) { return (int)(word >> bit & 1); }

/* AVX-VNNI is in the second part of leaf 7, where there is one. */
static int has_avxvnni(uint32_t parts) {
  uint32_t a, b, c, d;
  if (parts < 1) return 0;
  __cpuid_count(7, 1, a, b, c, d);
  return has(a, 4);
}

uint32_t qir_isa_detect(void) {
  uint32_t a, b, c, d;
  if (__get_cpuid_max(0, NULL) < 7) return 0;
  __cpuid(1, a, b, c, d);
  if (!has(c, 27)) return 0; /* no OSXSAVE: the system saves no vector state */
  const int fma = has(c, 12);
  const uint64_t saved = saved_state();
  __cpuid_count(7, 0, a, b, c, d);
  uint32_t isa = 0;
  if ((saved & 0x06) != 0x06 || !has(b, 5) || !fma) return isa;
  isa |= QIR_ISA_AVX2;
  if (has_avxvnni(a)) isa |= QIR_ISA_AVXVNNI;
  if ((saved & 0xe6) != 0xe6 || !has(b, 16) || !has(b, 17) || !has(b, 30) || !has(b, 31))
    return isa;
  isa |= QIR_ISA_AVX512;
  if (has(c, 11)) isa |= QIR_ISA_AVX512VNNI | QIR_ISA_AVXVNNI_EVEX;
  if (has(c, 1)) isa |= QIR_ISA_AVX512VBMI;
  return isa;
}
#elif defined(QIR_ARM64)
#if defined(__linux__)
#include <sys/auxv.h>

static int has_dot_product(void) { return getauxval(AT_HWCAP) >> 20 & 1; /* HWCAP_ASIMDDP */ }
#elif defined(__APPLE__)
#include <sys/sysctl.h>

static int has_dot_product(void) {
  int has = 0;
  size_t size = sizeof has;
  return sysctlbyname("hw.optional.arm.FEAT_DotProd", &has, &size, NULL, 0) == 0 && has;
}
#else
static int has_dot_product(void) { return 0; }
#endif

uint32_t qir_isa_detect(void) { return QIR_ISA_NEON | (has_dot_product() ? QIR_ISA_NEONDOT : 0); }
#else
uint32_t qir_isa_detect(void) { return 0; }
#endif
