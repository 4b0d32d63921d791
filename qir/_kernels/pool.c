#define _GNU_SOURCE /* sched_getcpu, cpu_set_t */
#include "pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>

enum { SPINS = 2000 /* some 50 us */ };

struct job {
  qir_task_fn task;
  void *context;
  long tasks;
};

static pthread_mutex_t busy = PTHREAD_MUTEX_INITIALIZER; /* held for the length of one call */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards everything below */
static pthread_cond_t posted = PTHREAD_COND_INITIALIZER;
static pthread_cond_t finished = PTHREAD_COND_INITIALIZER;
static int started;            /* threads that exist, the caller not among them */
static int asleep;             /* of these, threads that wait for `posted` */
static int waiting;            /* the caller waits for `finished` */
static int wanted;             /* threads that the current call still asks for */
static int joined;             /* threads that came to the current call: numbers them from 1 */
static struct job job;         /* the current call */
static int caller_core;        /* where the caller was when it posted the call; -1: unknown */
static atomic_int working;     /* threads inside the current call */
static atomic_uint generation; /* number of the current call */
static atomic_long next_task;

static void pause_core(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static int core(void) {
#if defined(__linux__)
  return sched_getcpu();
#else
  return -1;
#endif
}

/* Leaves the caller's core. A scheduler likes to wake a thread where its waker runs; both would
   take turns there for milliseconds, until the load is balanced. */
static void step_aside(int from) {
#if defined(__linux__)
  cpu_set_t allowed, others;
  if (from < 0 || core() != from || sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  others = allowed;
  CPU_CLR(from, &others);
  if (CPU_COUNT(&others) > 0 && sched_setaffinity(0, sizeof others, &others) == 0)
    sched_setaffinity(0, sizeof allowed, &allowed);
#else
  (void)from;
#endif
}

static void drain(const struct job *now, int worker) {
  for (long task; (task = atomic_fetch_add(&next_task, 1)) < now->tasks;)
    now->task(now->context, task, worker);
}

static void linger(unsigned seen) {
  for (int i = 0; i < SPINS && atomic_load(&generation) == seen; ++i) pause_core();
}

static void *work(void *unused) {
  (void)unused;
  unsigned seen = 0;
  pthread_mutex_lock(&lock);
  for (;;) {
    int slept = 0;
    while (atomic_load(&generation) == seen || wanted == 0) {
      seen = atomic_load(&generation);
      ++asleep;
      pthread_cond_wait(&posted, &lock);
      --asleep;
      slept = 1;
    }
    seen = atomic_load(&generation);
    --wanted;
    const int worker = ++joined;
    const struct job now = job;
    const int from = slept ? caller_core : -1;
    atomic_fetch_add(&working, 1);
    pthread_mutex_unlock(&lock);
    step_aside(from);
    drain(&now, worker);
    pthread_mutex_lock(&lock);
    if (atomic_fetch_sub(&working, 1) == 1 && waiting) pthread_cond_signal(&finished);
    pthread_mutex_unlock(&lock);
    linger(seen);
    pthread_mutex_lock(&lock);
  }
  return NULL;
}

static void forget(void) { /* in a forked child: its parent's threads are not here */
  const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
  const pthread_cond_t quiet = PTHREAD_COND_INITIALIZER;
  busy = lock = fresh;
  posted = finished = quiet;
  started = asleep = waiting = wanted = joined = 0;
  atomic_store(&working, 0);
}

static void start(int threads) {
  static int watched;
  if (!watched) watched = pthread_atfork(NULL, NULL, forget) == 0;
  if (started >= threads) return;
  sigset_t all, before; /* signals are for the caller's threads */
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  for (pthread_t thread; started < threads; ++started) {
    if (pthread_create(&thread, NULL, work, NULL) != 0) break;
    pthread_detach(thread);
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void await(void) {
  for (int i = 0; i < SPINS && atomic_load(&working) != 0; ++i) pause_core();
  pthread_mutex_lock(&lock);
  waiting = 1;
  while (atomic_load(&working) != 0) pthread_cond_wait(&finished, &lock);
  waiting = 0;
  pthread_mutex_unlock(&lock);
}

void qir_pool_run(long tasks, int threads, qir_task_fn task, void *context) {
  if (threads > QIR_POOL_MAX_THREADS) threads = QIR_POOL_MAX_THREADS;
  if (threads > tasks) threads = (int)tasks;
  if (threads <= 1 || pthread_mutex_trylock(&busy) != 0) {
    for (long i = 0; i < tasks; ++i) task(context, i, 0);
    return;
  }
  pthread_mutex_lock(&lock);
  start(threads - 1);
  job = (struct job){task, context, tasks};
  caller_core = core();
  atomic_store(&next_task, 0);
  wanted = threads - 1 < started ? threads - 1 : started;
  joined = 0;
  atomic_fetch_add(&generation, 1);
  if (asleep > 0) pthread_cond_broadcast(&posted);
  pthread_mutex_unlock(&lock);
  const struct job now = {task, context, tasks};
  drain(&now, 0);
  pthread_mutex_lock(&lock);
  wanted = 0; /* whoever has not woken yet is not needed any more */
  pthread_mutex_unlock(&lock);
  await();
  pthread_mutex_unlock(&busy);
}
