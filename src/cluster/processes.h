/* Inside of cluster/: processes of this machine, as /proc shows them, and which ranks of this node have arrived before MPI has
 * started. */
#ifndef NOCTURNE_CLUSTER_PROCESSES_H
#define NOCTURNE_CLUSTER_PROCESSES_H

#include "base/buffer.h"

#include <stdbool.h> /* bool */
#include <stdint.h>  /* int64_t */

/* State letter of a process ('R', 'S', 'D', 'T', 'Z'), 0 when there is none; *started: when it began, in clock ticks since the
 * machine did, which with its number names a process for good. */
char process_state(int64_t pid, int64_t *started);
bool process_is_gone(char state);
bool process_is_stopped(char state);

/* Removes the files in /dev/shm by which Open MPI lets the ranks of this node exchange messages. For a rank that ends a run in which others were
 * killed or are stopped: they cannot remove theirs, and not every launcher does. Messages go on in what is mapped already. */
void remove_shared_memory(void);

/* True for the first process of this node that asks before MPI has started: it speaks for all. */
bool arrival_speaks(void);
/* Shows the other ranks that this one has arrived, by a socket in Linux's abstract namespace: it is no file and goes away with the
 * process. Nothing for a process that no launcher with PMIx or Slurm started. */
void arrival_show(void);
void arrival_hide(void);
/* Appends which ranks have not arrived on this node, or are stopped, or "" when nothing is known. */
void arrival_describe(struct buffer *text);

#endif
