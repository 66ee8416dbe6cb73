#include "checking.hpp"

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <vector>

extern char** environ;

namespace chorale::job {

namespace {

constexpr const char* START =
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from chorale.job.mpi.checking import main; sys.exit(main())";

// The environment without what would make the child a rank of the job.
std::vector<char*> plain_environment() {
    std::vector<char*> kept;
    for (char** each = environ; *each != nullptr; each++) {
        const std::string_view entry = *each;
        if (entry.substr(0, 11) != "LD_PRELOAD=" && entry.substr(0, 3) != "PMI") kept.push_back(*each);
    }
    kept.push_back(nullptr);
    return kept;
}

// How the child ended: its exit code, or -1 where it had to be ended, or was by a signal.
int exit_code(pid_t child, double limit_s) {
    using Clock = std::chrono::steady_clock;
    const auto deadline = Clock::now() + std::chrono::duration<double>(limit_s);
    int status = 0;
    for (;;) {
        const pid_t ended = waitpid(child, &status, WNOHANG);
        if (ended == child) return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
        if ((ended < 0 && errno != EINTR) || Clock::now() > deadline) break;
        const timespec pause{0, 5000000};
        nanosleep(&pause, nullptr);
    }
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    return -1;
}

}  // namespace

std::string table_verdict(const std::string& path, const std::string& digest, double limit_s) {
    std::FILE* const said = std::tmpfile();
    if (said == nullptr) return "the tuning table cannot be checked: no temporary file";
    std::vector<const char*> words = {CHORALE_PYTHON, "-P", "-c", START, CHORALE_PACKAGES, path.c_str(), digest.c_str(), nullptr};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fileno(said), STDOUT_FILENO);
    pid_t child = 0;
    const int refused = posix_spawn(&child, CHORALE_PYTHON, &actions, nullptr, const_cast<char**>(words.data()),
                                    plain_environment().data());
    posix_spawn_file_actions_destroy(&actions);
    const int code = refused ? -1 : exit_code(child, limit_s);
    char text[200] = {};
    std::rewind(said);
    const size_t length = std::fread(text, 1, sizeof text - 1, said);
    std::fclose(said);
    if (code == 0) return "";
    if (length > 0) return std::string(text, length);
    const std::string why = refused ? std::strerror(refused) : "it ended with " + std::to_string(code);
    return std::string("the tuning table cannot be checked by ") + CHORALE_PYTHON + ": " + why;
}

}  // namespace chorale::job
