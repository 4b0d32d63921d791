// What one core can do at most. The instructions are written out: a compiler that keeps an
// accumulator in memory would measure its own stores.

#if defined(__AVX512VNNI__)
#define STEP(n) "vpdpbusd %%zmm31, %%zmm30, %%zmm" #n "\n"
#define BYTES 64
#else  // AVX2: pairs of bytes, pairs of pairs, and the sum
#define STEP(n)                                                                \
  "vpmaddubsw %%ymm15, %%ymm14, %%ymm13\nvpmaddwd %%ymm12, %%ymm13, %%ymm13\n" \
  "vpaddd %%ymm13, %%ymm" #n ", %%ymm" #n "\n"
#define BYTES 32
#endif

// Twelve accumulators hide the latency of one instruction, four cycles at two a cycle.
#define ALL(each) \
  each(0) each(1) each(2) each(3) each(4) each(5) each(6) each(7) each(8) each(9) each(10) each(11)

void peak_i8(long steps) {
  for (long step = 0; step < steps; step++) {
#if defined(__AVX512VNNI__)
    __asm__ volatile(ALL(STEP)::
                         : "zmm0", "zmm1", "zmm2", "zmm3", "zmm4", "zmm5", "zmm6", "zmm7", "zmm8",
                           "zmm9", "zmm10", "zmm11");
#else
    __asm__ volatile(ALL(STEP)::
                         : "ymm0", "ymm1", "ymm2", "ymm3", "ymm4", "ymm5", "ymm6", "ymm7", "ymm8",
                           "ymm9", "ymm10", "ymm11", "ymm13");
#endif
  }
}

// Multiply-adds of one step.
long peak_i8_step(void) { return 12 * BYTES; }

// Reads memory once, as a product of a matrix and a vector reads its weights.
void read_bytes(const char *data, long bytes) {
  for (long i = 0; i + 256 <= bytes; i += 256) {
#if defined(__AVX512F__)
    __asm__ volatile(
        "vmovdqu64 (%0), %%zmm0\nvmovdqu64 64(%0), %%zmm1\n"
        "vmovdqu64 128(%0), %%zmm2\nvmovdqu64 192(%0), %%zmm3\n" ::"r"(data + i)
        : "zmm0", "zmm1", "zmm2", "zmm3");
#else
    __asm__ volatile(
        "vmovdqu (%0), %%ymm0\nvmovdqu 32(%0), %%ymm1\nvmovdqu 64(%0), %%ymm2\n"
        "vmovdqu 96(%0), %%ymm3\nvmovdqu 128(%0), %%ymm0\nvmovdqu 160(%0), %%ymm1\n"
        "vmovdqu 192(%0), %%ymm2\nvmovdqu 224(%0), %%ymm3\n" ::"r"(data + i)
        : "ymm0", "ymm1", "ymm2", "ymm3");
#endif
  }
}
