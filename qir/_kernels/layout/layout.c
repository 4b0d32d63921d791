#include "layout.h"

#include <string.h>

#include "elementwise/elementwise.h"

enum { CHUNK = 64 * 1024 /* bytes of a task */, TILE = 64, WORD = 8 };

/* Swaps bytes, pairs of them and halves between words that are 1, 2 and 4 rows apart. */
static void swap_between(uint64_t word[WORD], int apart, uint64_t mask) {
  for (int i = 0; i < WORD; ++i)
    if (!(i & apart)) {
      const uint64_t differ = (word[i] >> (8 * apart) ^ word[i + apart]) & mask;
      word[i + apart] ^= differ;
      word[i] ^= differ << (8 * apart);
    }
}

/* Eight rows of eight bytes, whose first byte is the lowest of a word. */
static void transpose_words(const uint8_t *x, size_t columns, uint8_t *y, size_t rows) {
  uint64_t word[WORD];
  for (int i = 0; i < WORD; ++i) memcpy(&word[i], x + (size_t)i * columns, WORD);
  swap_between(word, 1, UINT64_C(0x00ff00ff00ff00ff));
  swap_between(word, 2, UINT64_C(0x0000ffff0000ffff));
  swap_between(word, 4, UINT64_C(0x00000000ffffffff));
  for (int j = 0; j < WORD; ++j) memcpy(y + (size_t)j * rows, &word[j], WORD);
}

static void transpose_tile(const uint8_t *x, size_t rows, size_t columns, uint8_t *y, size_t high,
                           size_t wide) {
  for (size_t i = 0; i < high; i += WORD)
    for (size_t j = 0; j < wide; j += WORD) {
      if (i + WORD <= high && j + WORD <= wide) {
        transpose_words(x + i * columns + j, columns, y + j * rows + i, rows);
        continue;
      }
      for (size_t b = j; b < wide && b < j + WORD; ++b)
        for (size_t a = i; a < high && a < i + WORD; ++a) y[b * rows + a] = x[a * columns + b];
    }
}

void qir_transpose_bytes(const uint8_t *x, size_t rows, size_t columns, uint8_t *y) {
  for (size_t j = 0; j < columns; j += TILE)
    for (size_t i = 0; i < rows; i += TILE)
      transpose_tile(x + i * columns + j, rows, columns, y + j * rows + i,
                     rows - i < TILE ? rows - i : TILE, columns - j < TILE ? columns - j : TILE);
}

/* ---- copy ---- */

struct copy {
  struct qir_copy s;
  qir_lookup_fn lookup; /* NULL: bytes stay as they are */
  uint8_t table[256];
  int x, y;
  size_t per_task; /* rows */
};

static void run_copy(const void *params, void *const *buffers, void *scratch, long task) {
  (void)scratch;
  const struct copy *v = params;
  const size_t first = (size_t)task * v->per_task;
  const size_t end = first + v->per_task < v->s.rows ? first + v->per_task : v->s.rows;
  const uint8_t *x = (const uint8_t *)buffers[v->x] + v->s.x_offset;
  uint8_t *y = (uint8_t *)buffers[v->y] + v->s.y_offset;
  for (size_t i = first; i < end; ++i) {
    if (v->lookup)
      v->lookup(v->table, x + i * v->s.x_stride, y + i * v->s.y_stride, v->s.width);
    else
      memmove(y + i * v->s.y_stride, x + i * v->s.x_stride, v->s.width);
  }
}

int qir_copy_make(uint32_t isa, const struct qir_copy *copy, const uint8_t *table, int x, int y,
                  struct qir_step *step) {
  struct copy *v = qir_step_alloc(sizeof *v);
  if (!v) return 0;
  v->s = *copy;
  v->x = x;
  v->y = y;
  v->per_task = CHUNK / (copy->width ? copy->width : 1) + 1;
  if (table) {
    v->lookup = QIR_SELECT(qir_elementwise_kernels, isa)->lookup;
    memcpy(v->table, table, sizeof v->table);
  }
  *step = (struct qir_step){run_copy, v, (long)((copy->rows + v->per_task - 1) / v->per_task), 0};
  return 1;
}

/* ---- fill ---- */

struct fill {
  size_t offset, size;
  uint8_t value;
  int y;
};

static void run_fill(const void *params, void *const *buffers, void *scratch, long task) {
  (void)scratch;
  (void)task;
  const struct fill *v = params;
  memset((uint8_t *)buffers[v->y] + v->offset, v->value, v->size);
}

int qir_fill_make(size_t offset, size_t size, uint8_t value, int y, struct qir_step *step) {
  struct fill *v = qir_step_alloc(sizeof *v);
  if (!v) return 0;
  *v = (struct fill){offset, size, value, y};
  *step = (struct qir_step){run_fill, v, 1, 0};
  return 1;
}

/* ---- transpose ---- */

struct transpose {
  size_t rank, itemsize;
  int x, y;
  size_t offset;                /* of the first element in x */
  size_t plane;                 /* elements of y per index of its first axis */
  size_t shape[QIR_MAX_RANK];   /* of y */
  size_t strides[QIR_MAX_RANK]; /* in x, by the axes of y, in elements */
};

/* One row of the last axis. */
static void gather_row(const uint8_t *x, size_t stride, uint8_t *y, size_t n, size_t itemsize) {
  switch (stride == 1 ? 0 : itemsize) {
    case 0: memcpy(y, x, n * itemsize); break;
    case 1:
      for (size_t i = 0; i < n; ++i) y[i] = x[i * stride];
      break;
    case 4:
      for (size_t i = 0; i < n; ++i) memcpy(y + 4 * i, x + 4 * i * stride, 4);
      break;
    default:
      for (size_t i = 0; i < n; ++i) memcpy(y + i * itemsize, x + i * stride * itemsize, itemsize);
  }
}

static void run_transpose(const void *params, void *const *buffers, void *scratch, long task) {
  (void)scratch;
  const struct transpose *v = params;
  const size_t rank = v->rank, item = v->itemsize, last = v->shape[rank - 1];
  size_t index[QIR_MAX_RANK] = {0};
  const uint8_t *x =
      (const uint8_t *)buffers[v->x] + (v->offset + (size_t)task * v->strides[0]) * item;
  uint8_t *y = (uint8_t *)buffers[v->y] + (size_t)task * v->plane * item;
  for (size_t done = 0; done < v->plane; done += last) {
    size_t from = 0;
    for (size_t d = 1; d + 1 < rank; ++d) from += index[d] * v->strides[d];
    gather_row(x + from * item, v->strides[rank - 1], y + done * item, last, item);
    for (size_t d = rank > 2 ? rank - 2 : 0; d > 0 && ++index[d] == v->shape[d]; --d) index[d] = 0;
  }
}

/* A matrix of bytes, or a batch of them. */
static void run_planes(const void *params, void *const *buffers, void *scratch, long task) {
  (void)scratch;
  const struct transpose *v = params;
  const size_t at = (size_t)task * v->plane;
  qir_transpose_bytes((const uint8_t *)buffers[v->x] + at, v->shape[2], v->shape[1],
                      (uint8_t *)buffers[v->y] + at);
}

int qir_transpose_make(const struct qir_permutation *p, int x, int y, struct qir_step *step) {
  struct transpose *v = qir_step_alloc(sizeof *v);
  if (!v) return 0;
  *v = (struct transpose){.rank = p->rank, .itemsize = p->itemsize, .x = x, .y = y, .plane = 1};
  for (size_t d = 0; d < p->rank; ++d) {
    v->shape[d] = p->shape[p->perm[d]];
    v->strides[d] = 1;
    for (size_t from = p->perm[d] + 1; from < p->rank; ++from) v->strides[d] *= p->shape[from];
    if (d > 0) v->plane *= v->shape[d];
  }
  const int planes = p->rank == 3 && p->itemsize == 1 && p->perm[0] == 0 && p->perm[1] == 2;
  *step = (struct qir_step){planes ? run_planes : run_transpose, v,
                            v->plane ? (long)v->shape[0] : 0, 0};
  return 1;
}

int qir_strided_make(const struct qir_strided *s, int x, int y, struct qir_step *step) {
  struct transpose *v = qir_step_alloc(sizeof *v);
  if (!v) return 0;
  *v = (struct transpose){
      .rank = s->rank, .itemsize = s->itemsize, .x = x, .y = y, .offset = s->offset, .plane = 1};
  for (size_t d = 0; d < s->rank; ++d) {
    v->shape[d] = s->shape[d];
    v->strides[d] = s->steps[d];
    if (d > 0) v->plane *= v->shape[d];
  }
  *step = (struct qir_step){run_transpose, v, v->plane ? (long)v->shape[0] : 0, 0};
  return 1;
}
