// Precedence over other processes of the machine.
#pragma once

#include <sched.h>
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

// Asks to run whenever there is work, as a wire does, before what asks with a smaller priority, which begins at 0. The
// kernel keeps a part of the time for all others. Threads that are made later inherit it.
inline bool schedule_in_real_time(int priority) {
    sched_param parameters{};
    parameters.sched_priority = sched_get_priority_min(SCHED_RR) + priority;
    return sched_setscheduler(0, SCHED_RR, &parameters) == 0;
}
