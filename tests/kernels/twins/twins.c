#define _DEFAULT_SOURCE /* mmap */
#include "twins.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "isa.h"

static uint64_t seed, state, checksum;
static const char *family;
static size_t number; /* of the case */
static char text[512];

/* ---- random numbers ---- */

static uint64_t draw(void) { /* splitmix64 */
  uint64_t z = state += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

size_t below(size_t n) { return (size_t)(draw() % n); }
size_t between(size_t low, size_t high) { return low + below(high - low + 1); }
int one_in(size_t n) { return below(n) == 0; }

float real(float low, float high) {
  return low + (high - low) * ((float)(draw() >> 40) * 0x1p-24f);
}

void fill_bytes(uint8_t *x, size_t n) {
  const size_t kind = below(5);
  const uint8_t one = (uint8_t)draw();
  for (size_t i = 0; i < n; ++i) {
    const uint8_t any = (uint8_t)draw();
    x[i] = kind == 0 ? one : kind == 1 ? (any & 1 ? 0xff : 0) : kind == 2 ? (any & 1) + 0x7f : any;
  }
}

static float special(size_t i) {
  const float all[] = {NAN, INFINITY, -INFINITY, -0.0f, 0x1p-140f, 0.5f, 2147483648.0f, 3e38f};
  return all[i % 8];
}

void fill_floats(float *x, size_t n, float scale) {
  const size_t some = one_in(3) ? between(2, 9) : 0;
  for (size_t i = 0; i < n; ++i) {
    x[i] = real(-scale, scale);
    if (some && one_in(some)) x[i] = special(below(8));
  }
}

/* ---- memory ---- */

struct mapping {
  struct mapping *next;
  size_t size;
};
static struct mapping *mappings;

static void fail(const char *what) {
  printf("%s, case %zu, seed %llu: %s\n  %s\n", family, number, (unsigned long long)seed, what,
         text);
  exit(1);
}

void *guarded(size_t bytes) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  const size_t room = (bytes + sizeof(struct mapping) + page - 1) / page * page;
  char *memory =
      mmap(NULL, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory + room, page, PROT_NONE)) fail("no memory");
  struct mapping *mapping = (struct mapping *)memory;
  *mapping = (struct mapping){mappings, room + page};
  mappings = mapping;
  return memory + room - bytes;
}

void *guarded_bytes(size_t n) {
  uint8_t *x = guarded(n);
  fill_bytes(x, n);
  return x;
}

float *guarded_floats(size_t n, float scale) {
  float *x = guarded(n * sizeof *x);
  fill_floats(x, n, scale);
  return x;
}

int32_t *guarded_words(size_t n, int32_t most) {
  int32_t *x = guarded(n * sizeof *x);
  for (size_t i = 0; i < n; ++i)
    x[i] = (int32_t)((int64_t)(draw() % (2 * (uint64_t)most + 1)) - most);
  return x;
}

static void release(void) {
  while (mappings) {
    struct mapping *mapping = mappings;
    mappings = mapping->next;
    munmap(mapping, mapping->size);
  }
}

/* ---- cases ---- */

static void begin_family(const char *name) {
  family = name;
  number = 0;
  checksum = state = 0xcbf29ce484222325u;
  for (; *name; ++name) state = (state ^ (uint8_t)*name) * 0x100000001b3u;
  state ^= seed * 0x9e3779b97f4a7c15u;
}

static void end_family(void) {
  printf("%-20s %4zu cases, checksum %016llx\n", family, number, (unsigned long long)checksum);
}

void describe(const char *format, ...) {
  va_list list;
  va_start(list, format);
  vsnprintf(text, sizeof text, format, list);
  va_end(list);
}

static void end_case(void) {
  release();
  ++number;
}

/* Makes all NaNs one: which payload is kept depends on the processor. */
static void same_nans(char *y, size_t bytes, size_t item) {
  for (size_t at = 0; item && at < bytes; at += item) {
    double wide = 0;
    float narrow = 0;
    if (item == sizeof narrow)
      memcpy(&narrow, y + at, item);
    else
      memcpy(&wide, y + at, item);
    if (narrow != narrow || wide != wide) memset(y + at, 0xff, item);
  }
}

void result(void *y, size_t bytes, size_t item) {
  same_nans(y, bytes, item);
  for (size_t i = 0; i < bytes; ++i) checksum = (checksum ^ ((uint8_t *)y)[i]) * 0x100000001b3u;
}

static void run(struct twins *t, uint32_t isa) {
  struct qir_step step = {0};
  if (!t->make(isa, t->how, &step)) fail("no step");
  void *scratch = guarded(qir_round_up(step.scratch, 64));
  memset(t->buffers[t->y], 0xa5, t->bytes);
  memset(scratch, 0x5a, step.scratch);
  qir_step_run(&step, t->buffers, scratch, 1);
  free(step.params);
  same_nans(t->buffers[t->y], t->bytes, t->item);
}

static void report(const struct twins *t, const char *name, const char *want) {
  const char *have = t->buffers[t->y];
  size_t at = 0;
  char line[256];
  while (have[at] == want[at]) ++at;
  if (t->item == sizeof(float)) {
    float a, b;
    at -= at % sizeof a;
    memcpy(&a, have + at, sizeof a);
    memcpy(&b, want + at, sizeof b);
    snprintf(line, sizeof line, "result %zu of %zu is %a with %s, %a with scalar", at / sizeof a,
             t->bytes / sizeof a, (double)a, name, (double)b);
  } else {
    snprintf(line, sizeof line, "byte %zu of %zu is %d with %s, %d with scalar", at, t->bytes,
             (uint8_t)have[at], name, (uint8_t)want[at]);
  }
  fail(line);
}

void compare(struct twins *t) {
  const uint32_t detected = qir_isa_detect();
  run(t, QIR_ISA_SCALAR);
  char *want = guarded(t->bytes);
  memcpy(want, t->buffers[t->y], t->bytes);
  result(want, t->bytes, 0);
  uint32_t kept = 0;
  for (size_t i = qir_isa_name_count; i-- > 0;) { /* the last is scalar */
    const struct qir_isa_name *set = qir_isa_names + i;
    if (!set->bit || (set->bit & detected) != set->bit) continue;
    kept |= set->bit;
    run(t, kept);
    if (memcmp(t->buffers[t->y], want, t->bytes)) report(t, set->name, want);
  }
}

/* ---- all ---- */

static const struct {
  const char *name;
  void (*run)(void);
} families[] = {
    {"convolutions", convolutions},
    {"depthwise", depthwise},
    {"groups", groups},
    {"matrices", matrices},
    {"dynamic", dynamic},
    {"elements", elements},
    {"tables", tables},
    {"codes_of_floats", codes_of_floats},
    {"float_products", float_products},
    {"float_convolutions", float_convolutions},
    {"float_functions", float_functions},
    {"pools", pools},
    {"rows", rows},
    {"layers", layers},
    {"casts", casts},
    {"quantizers", quantizers},
    {"arrays", arrays},
    {"histograms", histograms},
};

/* Arguments: seed, cases of a family, and one family or none for all. */
int main(int count, char **arguments) {
  seed = count > 1 ? strtoull(arguments[1], NULL, 10) : 1;
  const size_t cases = count > 2 ? strtoul(arguments[2], NULL, 10) : 100;
  const char *only = count > 3 ? arguments[3] : NULL;
  printf("seed %llu\nsets", (unsigned long long)seed);
  const uint32_t detected = qir_isa_detect();
  for (size_t i = 0; i < qir_isa_name_count; ++i)
    if ((qir_isa_names[i].bit & detected) == qir_isa_names[i].bit)
      printf(" %s", qir_isa_names[i].name);
  printf("\n");
  for (size_t i = 0; i < sizeof families / sizeof *families; ++i) {
    if (only && strcmp(only, families[i].name)) continue;
    begin_family(families[i].name);
    for (; number < cases; end_case()) families[i].run();
    end_family();
  }
  return 0;
}
