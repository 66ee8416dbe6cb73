// Network namespaces by path: whatever a thread opens after `enter_namespace` belongs to that namespace.
#pragma once

#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>

inline std::runtime_error system_error(const std::string& action) {
    return std::runtime_error(action + ": " + std::strerror(errno));
}

inline void enter_namespace(const std::string& path) {
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) throw system_error("open " + path);
    const int status = setns(file, CLONE_NEWNET);
    close(file);
    if (status != 0) throw system_error("setns " + path);
}

// Large networks need more descriptors than a process has by default.
inline void raise_descriptor_limit() {
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}
