#ifndef QIR_X86_AVXVNNI_H
#define QIR_X86_AVXVNNI_H

/*
 * VPDPBUSD on 256 bits: as AVX-VNNI has it, and as AVX-512 with VL and VNNI does. The encodings
 * differ, no result does.
 */

#include "x86_avx2.h"

#define QIR_AVXVNNI_TARGET "avx2,fma,avxvnni"
#define QIR_AVXVNNI_EVEX_TARGET "avx2,fma,avx512f,avx512vl,avx512vnni"

/* gcc 12 spills the sums of the intrinsics, as x86_avx512.h says. */
#define QIR_DPBUSD_VEX(sum, left, right) \
  __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(left), "x"(right))
#define QIR_DPBUSD_EVEX(sum, left, right) \
  __asm__("%{evex%} vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(left), "v"(right))

/* The same with weights in memory. */
#define QIR_DPBUSD_VEX_FROM(sum, left, right) \
  __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(left), "m"(*(const __m256i *)(right)))
#define QIR_DPBUSD_EVEX_FROM(sum, left, right) \
  __asm__("%{evex%} vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(left), "m"(*(const __m256i *)(right)))

#endif
