#ifndef QIR_CHECKSUM_H
#define QIR_CHECKSUM_H

/* A 64-bit sum of bytes, as fast as memory: eight sums of words in turn, then one of these. A
 * change of any one word changes it; it is no protection against forgery. */

#include <stddef.h>
#include <stdint.h>

uint64_t qir_checksum(const uint8_t *data, size_t size);

#endif
