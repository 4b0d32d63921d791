#include "checksum.h"

#include <string.h>

enum { LANES = 8 };

/* One-to-one in `sum` for each word and in the word for each sum. */
static inline uint64_t mixed(uint64_t sum, uint64_t word) {
  sum = (sum ^ word) * 0x9e3779b97f4a7c15u;
  return sum ^ sum >> 29;
}

uint64_t qir_checksum(const uint8_t *data, size_t size) {
  uint64_t lanes[LANES], words[LANES];
  for (size_t l = 0; l < LANES; ++l) lanes[l] = l + 1;
  size_t at = 0;
  for (; size - at >= sizeof words; at += sizeof words) {
    memcpy(words, data + at, sizeof words);
    for (size_t l = 0; l < LANES; ++l) lanes[l] = mixed(lanes[l], words[l]);
  }
  memset(words, 0, sizeof words);
  if (at < size) memcpy(words, data + at, size - at);
  for (size_t l = 0; l < LANES; ++l) lanes[l] = mixed(lanes[l], words[l]);
  uint64_t sum = size;
  for (size_t l = 0; l < LANES; ++l) sum = mixed(sum, lanes[l]);
  return sum;
}
