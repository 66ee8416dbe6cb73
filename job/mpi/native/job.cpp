#include "job.hpp"

#include <link.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <stdexcept>
#include <thread>

#include "nodes.hpp"

extern char** environ;

namespace chorale::job {

namespace {

constexpr double MEETING_S = 60, CHECK_S = 300;
// Time to wait before an abort: launchers drop a rank's last output if it aborts immediately.
constexpr std::chrono::milliseconds FORWARDING{300};

std::unique_ptr<Job> current;
bool has_begun = false;
std::mutex groups_lock;
int group_keyval = MPI_KEYVAL_INVALID;

#if defined(MPI_ABI)
constexpr const char* OWN = "the standard ABI";
#elif defined(OPEN_MPI)
constexpr const char* OWN = "Open MPI";
#else
constexpr const char* OWN = "MPICH and its kin";
#endif

bool begins(const std::string& text, const char* with) { return text.rfind(with, 0) == 0; }

// Whether a file name (without folder) is that of an MPI library.
bool is_mpi_library(const std::string& name) {
    return begins(name, "libmpi.so") || begins(name, "libmpi_abi.so") || begins(name, "libmpich.so");
}

int add_mpi_library(dl_phdr_info* object, size_t, void* names) {
    const std::string path = object->dlpi_name == nullptr ? "" : object->dlpi_name;
    const std::string name = path.substr(path.rfind('/') + 1);
    auto& libraries = *static_cast<std::vector<std::string>*>(names);
    const auto is_same = [&name](const std::string& other) { return other.substr(other.rfind('/') + 1) == name; };
    const bool is_new = std::none_of(libraries.begin(), libraries.end(), is_same);
    if (is_new && is_mpi_library(name)) libraries.push_back(path);
    return 0;
}

std::string variable(const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
}

void say(const std::string& message) {
    const std::string rank = current ? "rank " + std::to_string(current->rank) + ": " : "";
    std::fprintf(stderr, "chorale: %s%s\n", rank.c_str(), message.c_str());
    std::fflush(stderr);
}

Settings settings_of_environment() {
    Settings settings;
    settings.table = variable("CHORALE_TABLE");
    settings.report = variable("CHORALE_REPORT");
    settings.record = variable("CHORALE_RECORD");
    settings.interface = variable("CHORALE_INTERFACE");
    const std::string strict = variable("CHORALE_STRICT"), limit = variable("CHORALE_TIMEOUT_S");
    if (!strict.empty() && strict != "0" && strict != "1") throw std::runtime_error("CHORALE_STRICT must be 0 or 1");
    settings.strict = strict == "1";
    if (const std::string way = variable("CHORALE_WITHIN_NODES"); !way.empty()) settings.within_nodes = way;
    if (settings.within_nodes != "measure" && settings.within_nodes != "leaders" && settings.within_nodes != "slices")
        throw std::runtime_error("CHORALE_WITHIN_NODES must be leaders, slices or measure");
    if (limit.empty()) return settings;
    char* end = nullptr;
    settings.limit_s = std::strtod(limit.c_str(), &end);
    if (*end != '\0' || !(settings.limit_s > 0 && settings.limit_s < 1e9))
        throw std::runtime_error("CHORALE_TIMEOUT_S must be a number of seconds above 0");
    return settings;
}

// Throws std::runtime_error if ranks have different tables; the message, the same on all ranks, lists them by table.
void require_one_table(const std::vector<std::string>& digests) {
    std::map<std::string, std::string> ranks;
    for (size_t rank = 0; rank < digests.size(); rank++) {
        auto& text = ranks[digests[rank]];
        text += (text.empty() ? "" : ", ") + std::to_string(rank);
    }
    if (ranks.size() == 1) return;
    std::string found;
    for (const auto& [digest, text] : ranks)
        found += "; ranks " + text + ": " + (digest.empty() ? "none" : digest.substr(0, 12));
    throw std::runtime_error("the ranks of the job have different tuning tables" + found +
                             "; give all of them the same file in CHORALE_TABLE");
}

constexpr const char* START =
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from chorale.job.mpi.checking import main; sys.exit(main())";

// Returns the environment without variables that would make the child process a rank of the job.
std::vector<char*> plain_environment() {
    std::vector<char*> kept;
    for (char** each = environ; *each != nullptr; each++) {
        const std::string_view entry = *each;
        if (entry.substr(0, 11) != "LD_PRELOAD=" && entry.substr(0, 3) != "PMI") kept.push_back(*each);
    }
    kept.push_back(nullptr);
    return kept;
}

// Runs job/mpi/checking.py on the table file, and returns its output; throws its error message.
std::string checked_table(const std::string& path, const std::string& digest) {
    std::FILE* const said = std::tmpfile();
    if (said == nullptr) throw std::runtime_error("the tuning table cannot be checked: no temporary file");
    std::vector<const char*> words = {CHORALE_PYTHON, "-P", "-c", START, CHORALE_PACKAGES, path.c_str(), digest.c_str(), nullptr};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fileno(said), STDOUT_FILENO);
    pid_t child = 0;
    const int refused = posix_spawn(&child, CHORALE_PYTHON, &actions, nullptr, const_cast<char**>(words.data()),
                                    plain_environment().data());
    posix_spawn_file_actions_destroy(&actions);
    int status = 0;
    const bool has_ended = !refused && waitpid(child, &status, 0) == child && WIFEXITED(status);
    std::string text(size_t(std::max<off_t>(lseek(fileno(said), 0, SEEK_END), 0)), '\0');
    std::rewind(said);
    const bool is_read = std::fread(text.data(), 1, text.size(), said) == text.size();
    std::fclose(said);
    if (has_ended && WEXITSTATUS(status) == 0 && is_read) return text;
    if (has_ended && !text.empty()) throw std::runtime_error(text);
    throw std::runtime_error(std::string("the tuning table cannot be checked by ") + CHORALE_PYTHON + ": " +
                             (refused ? std::strerror(refused) : "it ended with status " + std::to_string(status)));
}

// Rank 0 lets Python check the signature, the digest and the programs of the table, which is the same on all ranks.
// Then all ranks parse the content that Python has checked.
Table read_table(const Job& job) {
    std::string content, problem;
    try {
        if (job.rank == 0) content = checked_table(job.settings.table, job.table.digest);
    } catch (const std::exception& error) {
        problem = error.what();
    }
    const std::string said = gather_texts(MPI_COMM_WORLD, problem.substr(0, 255), CHECK_S + MEETING_S).front();
    if (!said.empty()) throw std::runtime_error(said);
    int size = int(content.size());
    PMPI_Bcast(&size, 1, MPI_INT, 0, MPI_COMM_WORLD);
    content.resize(size);
    PMPI_Bcast(content.data(), size, MPI_BYTE, 0, MPI_COMM_WORLD);
    return parse_table(content);
}

// If the table has a different number of ranks than the job, checks whether its ranks are the nodes of the job.
void find_nodes(Job& job) {
    if (!job.has_table() || job.table.ranks == job.ranks) return;
    job.nodes = nodes_of_job(job.ranks, MEETING_S);
    const int count = 1 + *std::max_element(job.nodes.begin(), job.nodes.end());
    if (count == job.table.ranks) return;
    job.other_ranks = std::string(GROUP) + ": the table is for " + std::to_string(job.table.ranks) +
                      " ranks or nodes, the job has " + std::to_string(job.ranks) + " ranks on " +
                      std::to_string(count) + (count == 1 ? " node" : " nodes");
}

int delete_group(MPI_Comm, int, void* group, void*) {
    delete static_cast<Group*>(group);
    return MPI_SUCCESS;
}

// Writes `text` to the file `name`, or to stderr if the name is "-".
void write_record(const char* variable, const std::string& name, const std::string& text) {
    if (name.empty()) return;
    std::FILE* const file = name == "-" ? stderr : std::fopen(name.c_str(), "w");
    const bool is_written = file != nullptr && std::fputs(text.c_str(), file) >= 0 && std::fflush(file) == 0;
    if (file != nullptr && file != stderr) std::fclose(file);
    if (!is_written) say(std::string(variable) + " cannot be written: " + name);
}

}  // namespace

Job* job() { return current.get(); }

double seconds_now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void begin() {
    if (current) return;
    has_begun = true;
    auto started = std::make_unique<Job>();
    PMPI_Comm_rank(MPI_COMM_WORLD, &started->rank);
    PMPI_Comm_size(MPI_COMM_WORLD, &started->ranks);
    current = std::move(started);
    try {
        current->settings = settings_of_environment();
        if (current->has_table()) current->table.digest = table_digest(current->settings.table);
        require_one_table(gather_texts(MPI_COMM_WORLD, current->table.digest, MEETING_S));
        if (current->has_table()) current->table = read_table(*current);
        find_nodes(*current);
        PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, delete_group, &group_keyval, nullptr);
    } catch (const std::exception& error) {
        say((current->has_table() ? current->settings.table + ": " : "") + error.what());
        std::this_thread::sleep_for(FORWARDING);
        PMPI_Abort(MPI_COMM_WORLD, 1);
        std::_Exit(1);
    }
}

void end() {
    if (!current) return;
    if (current->rank == 0) {
        write_record("CHORALE_REPORT", current->settings.report,
                     current->counts.report(current->table.digest, current->ranks));
        write_record("CHORALE_RECORD", current->settings.record, current->counts.record(current->ranks));
    }
    PMPI_Comm_delete_attr(MPI_COMM_WORLD, group_keyval);
    PMPI_Comm_free_keyval(&group_keyval);
    current.reset();
}

void require_own_mpi() {
    std::vector<std::string> paths;  // MPI libraries that this process has loaded
    dl_iterate_phdr(add_mpi_library, &paths);
    if (paths.size() < 2) return;  // the program uses no other MPI: this library is linked with one of them
    std::string others;
    for (const auto& path : paths) {
        std::error_code unreadable;  // own if it is libmpi.so.12 next to libmpi.so, or the same file
        const bool is_own = begins(path, CHORALE_MPI) || std::filesystem::equivalent(path, CHORALE_MPI, unreadable);
        if (!is_own) others += (others.empty() ? "" : ", ") + path;
    }
    std::fprintf(stderr,
                 "chorale: the preloaded library uses %s (%s), and the program uses another MPI (%s): build a library "
                 "for that MPI with `chorale job mpi-preload /path/to/its/mpicc`, or run without LD_PRELOAD\n",
                 OWN, CHORALE_MPI, others.c_str());
    std::fflush(stderr);
    std::_Exit(1);
}

void require_a_world() {
    if (has_begun || variable("CHORALE_STRICT") != "1" || variable("CHORALE_TABLE").empty()) return;
    say("CHORALE_STRICT refuses it: collectives of this program cannot be intercepted, as it begins MPI without "
        "MPI_Init of the preloaded library (a session, or wrappers that call PMPI functions): run it without LD_PRELOAD");
    std::_Exit(1);
}

// At exit, detects MPI programs that were never intercepted.
__attribute__((destructor)) static void look_back() {
    int is_over = 0;
    if (!has_begun && PMPI_Finalized(&is_over) == MPI_SUCCESS && is_over) require_a_world();
}

Group* group_of(MPI_Comm comm) {
    if (!current || comm == MPI_COMM_NULL) return nullptr;
    void* group = nullptr;
    int is_there = 0;
    const std::lock_guard guard(groups_lock);
    if (PMPI_Comm_get_attr(comm, group_keyval, &group, &is_there) != MPI_SUCCESS) return nullptr;
    if (is_there) return static_cast<Group*>(group);
    auto made = std::make_unique<Group>(comm);
    return PMPI_Comm_set_attr(comm, group_keyval, made.get()) == MPI_SUCCESS ? made.release() : nullptr;
}

int fail(const Call& call, const std::string& message, int code) {
    say(std::string(call.collective) + " of " + std::to_string(call.size_bytes) + " bytes: " + message);
    PMPI_Comm_call_errhandler(call.comm, code);
    return code;
}

int refuse(const Call& call, const char* reason) {
    static int code = 0;
    if (code == 0) {
        int error_class = 0;
        if (PMPI_Add_error_class(&error_class) != MPI_SUCCESS || PMPI_Add_error_code(error_class, &code) != MPI_SUCCESS)
            code = MPI_ERR_OTHER;
    }
    const std::string text = std::string("CHORALE_STRICT refuses it: ") + reason;
    const std::string shown = "Chorale: " + std::string(call.collective) + ": " + text;
    if (code != MPI_ERR_OTHER) PMPI_Add_error_string(code, shown.substr(0, MPI_MAX_ERROR_STRING - 1).c_str());
    return fail(call, text, code);
}

bool may_fall_back(const Call& call, const char* reason) {
    if (current->settings.strict && reason != LIBRARY) return false;
    current->counts.fallback(reason, call.collective, int64_t(call.size_bytes));
    return true;
}

}  // namespace chorale::job
