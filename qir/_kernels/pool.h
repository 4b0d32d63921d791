#ifndef QIR_POOL_H
#define QIR_POOL_H

/*
 * A few threads that share out the tasks of one call.
 *
 * The calling thread works too, so one thread means no pool at all. A thread that
 * has not woken by the time the tasks are gone is not waited for, so a busy
 * machine costs little. A call that finds the pool busy runs its tasks alone.
 * Threads wait actively for a moment before they sleep, as the steps of a plan
 * follow each other closely. A forked child starts with no threads.
 */

/* `worker` is 0 for the caller and below `threads` for all: it numbers scratch memory. */
typedef void (*qir_task_fn)(void *context, long task, int worker);

enum { QIR_POOL_MAX_THREADS = 64 };

/* Runs task(context, 0 .. tasks - 1), each once, on at most `threads` threads. */
void qir_pool_run(long tasks, int threads, qir_task_fn task, void *context);

#endif
