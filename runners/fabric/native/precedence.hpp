// Precedence over other processes of the machine.
#pragma once

#include <sys/resource.h>

#include <cstdio>

// Asks for a niceness. Linux may weigh sessions and not processes, so it is set for the session, too, which must be
// that of this process alone. Where either is refused, all goes on later.
inline void take_precedence(int niceness) {
    setpriority(PRIO_PROCESS, 0, niceness);
    if (FILE* session = std::fopen("/proc/self/autogroup", "w")) {
        std::fprintf(session, "%d", niceness);
        std::fclose(session);
    }
}
