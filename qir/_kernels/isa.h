#ifndef QIR_ISA_H
#define QIR_ISA_H

/*
 * What the processor and the operating system together allow, one bit each.
 *
 * A kernel file is compiled on every platform with the same compiler flags. It
 * opens a region with QIR_TARGET_BEGIN, inside which the compiler may use the
 * instructions named, and it is empty where the architecture is another one.
 */

#include <stddef.h>
#include <stdint.h>

enum qir_isa {
  QIR_ISA_SCALAR = 0,
  QIR_ISA_AVX2 = 1 << 0,         /* with FMA */
  QIR_ISA_AVX512VNNI = 1 << 1,   /* beside QIR_ISA_AVX512 */
  QIR_ISA_AVX512VBMI = 1 << 2,   /* beside QIR_ISA_AVX512 */
  QIR_ISA_AVX512 = 1 << 3,       /* F, DQ, BW and VL, with FMA */
  QIR_ISA_AVXVNNI = 1 << 4,      /* 256 bits, beside QIR_ISA_AVX2 */
  QIR_ISA_AVXVNNI_EVEX = 1 << 5, /* the same by QIR_ISA_AVX512VNNI */
  QIR_ISA_NEON = 1 << 16,        /* of every 64-bit Arm processor */
  QIR_ISA_NEONDOT = 1 << 17,     /* SDOT: products of signed bytes, beside QIR_ISA_NEON */
};

/* A set of instructions by the name that QIR_ISA and the tests give it. */
struct qir_isa_name {
  const char *name;
  uint32_t bit;
  int asked; /* used where it is asked for by name alone */
};

/* Best first; the last is scalar, whose bit is zero. */
extern const struct qir_isa_name qir_isa_names[];
extern const size_t qir_isa_name_count;

/*
 * What kernels of 8-bit operands that need these bits take off unsigned values: SDOT multiplies
 * signed bytes. They read u8 codes with the highest bit flipped, i8 codes as they are.
 */
static inline int32_t qir_isa_centre(uint32_t isa) { return isa & QIR_ISA_NEONDOT ? 128 : 0; }

/* Bits of this machine; looks at the processor, which is slow in a virtual machine. */
uint32_t qir_isa_detect(void);

#if defined(__x86_64__)
#define QIR_X86 1
#elif defined(__aarch64__)
#define QIR_ARM64 1
#endif

#define QIR_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define QIR_TARGET_BEGIN(names) \
  QIR_PRAGMA(clang attribute push(__attribute__((target(names))), apply_to = function))
#define QIR_TARGET_END _Pragma("clang attribute pop")
#else
#define QIR_TARGET_BEGIN(names) _Pragma("GCC push_options") QIR_PRAGMA(GCC target(names))
#define QIR_TARGET_END _Pragma("GCC pop_options")
#endif

#define QIR_INLINE static inline __attribute__((always_inline))

/* The first row of a table of kernels, best first, that `isa` allows; the last row always does. */
#define QIR_SELECT(table, isa_bits)                       \
  __extension__({                                         \
    const __typeof__(*(table)) *row_ = (table);           \
    while ((row_->isa & (isa_bits)) != row_->isa) ++row_; \
    row_;                                                 \
  })

#endif
