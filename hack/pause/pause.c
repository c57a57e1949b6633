// SPDX-License-Identifier: Apache-2.0

// The program of the container that holds a Pod's namespaces on the nodes of the rig. It waits to be ended, and reaps what other
// containers leave to it if they share its PID namespace.
#include <signal.h>
#include <stddef.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int signal) { _exit(128 + signal); }

static void reap(int signal) {
  (void)signal;
  while (waitpid(-1, NULL, WNOHANG) > 0)
    ;
}

int main(void) {
  const struct sigaction ends = {.sa_handler = end};
  const struct sigaction reaps = {.sa_handler = reap, .sa_flags = SA_NOCLDSTOP};
  if (sigaction(SIGINT, &ends, NULL) < 0 || sigaction(SIGTERM, &ends, NULL) < 0 || sigaction(SIGCHLD, &reaps, NULL) < 0)
    return 1;
  for (;;)
    pause();
}
