// One process of an MPI job: its table, what it counts, its types of elements, and the groups of ranks that call
// collectives.
#pragma once

#include <mpi.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "chorale_engine.h"
#include "counts.hpp"
#include "table.hpp"

namespace chorale::job {

// name: in tables, null for a type that programs do not have; type: the engine's; only_sums: of
// complex numbers; only_wraps: unsigned ones, of which there are sums and products
struct Element {
    const char* name;
    int type;
    bool only_sums = false, only_wraps = false;
};

Element element_of(MPI_Datatype type);

// The engine's operation, -1 for one that programs do not have.
int operation_of(MPI_Op operation, const Element& element);

// The name of the elements that `type` consists of, which depends on its signature only, so that ranks with different
// layouts agree; "mixed" for more than one, "other" for what tables have no name for. Null for a type of no bytes.
const char* signature_of(MPI_Datatype type);

// Whether its elements lie side by side, as those of a vector do.
bool is_dense(MPI_Datatype type);

size_t size_of(MPI_Datatype type);

// A call as all its ranks see it alike: this alone decides what serves it.
struct Call {
    const char* collective;
    MPI_Comm comm;
    int root;            // -1: none
    size_t size_bytes;   // of the whole vector
    const char* dtype;   // in tables
    int type, operation; // of the engine
    const char* unfit;   // why no program can serve it, null if one may
    size_t count = 0;    // elements of `mpi_type`, of a call that reduces
    MPI_Datatype mpi_type = MPI_DATATYPE_NULL;
    MPI_Op mpi_operation = MPI_OP_NULL;
};

// Elements of the caller. At null there are none.
struct Side {
    void* at;
    size_t count;
    MPI_Datatype type;
};

class Nodes;

// The ranks of a communicator.
class Group {
  public:
    explicit Group(MPI_Comm comm);
    Group(MPI_Comm comm, std::vector<int> table_ranks);  // whose ranks are these of the table
    ~Group();
    Group(const Group&) = delete;
    Group& operator=(const Group&) = delete;

    int ranks() const { return int(members_.size()); }
    int rank() const { return rank_; }
    const std::string& json() const { return json_; }  // null, or its ranks in MPI_COMM_WORLD

    // All ranks call it at the same time, for the same call.
    Decision decide(const Call& call);

    // Runs the entry's program from and to elements that lie side by side. Throws std::runtime_error.
    void run(const Entry& entry, const Call& call, const void* input, void* output);

    // Whether the table may have a program for these ranks and `collective`; the same on all of them.
    bool has(std::string_view collective) const;

    // Whether its ranks call those of another group.
    bool is_inter() const { return members_.empty() || members_.front() < 0; }

    // Runs the entry's program; all ranks do. Returns what an MPI function returns, after a message on stderr.
    int execute(const Entry& entry, const Call& call, const Side& input, const Side& output);

  private:
    void connect(MPI_Comm comm);

    int rank_ = 0;
    std::vector<int> members_;
    std::string json_;
    GroupEntries entries_;
    std::unique_ptr<Nodes> nodes_;  // if the table's ranks are nodes
    std::mutex lock_;
    chorale_engine* engine_ = nullptr;
    std::vector<int64_t> numbers_;  // of the engine, by number in the table
    std::string broken_;            // why it is of no use any more
};

struct Settings {
    std::string table, report, record, interface;
    std::string within_nodes;  // leaders, slices, or empty: what is measured to be faster
    bool strict = false;
    double limit_s = 1800;
};

struct Job {
    Settings settings;
    Table table;
    Counts counts;
    int rank = 0, ranks = 0;
    std::vector<int> nodes;  // by rank, if the table has other ranks than the job
    std::string other_ranks;  // why that table serves no call, empty if its ranks are nodes or ranks of the job

    bool has_table() const { return !settings.table.empty(); }
    bool records() const { return !settings.record.empty(); }
};

// The job, null before MPI_Init and after MPI_Finalize.
Job* job();

// Reads what the environment says, and has all ranks agree on one table; aborts the job where that fails.
void begin();

// Writes the records.
void end();

// Ends the process, after a line on stderr, where the program uses another MPI than the one this library is built for:
// handles differ, so that no call could even be handed on.
void require_own_mpi();

// Ends the process, after a line on stderr, where CHORALE_STRICT is set: MPI has begun in a way that we cannot serve.
void require_a_world();

// Null outside of a job.
Group* group_of(MPI_Comm comm);

// Says on stderr what went wrong, and has the communicator's error handler decide; returns `code` if that returns.
int fail(const Call& call, const std::string& message, int code);

// As `fail`, with an error class of our own whose text says what CHORALE_STRICT refuses.
int refuse(const Call& call, const char* reason);

// Counts a call that the library serves; false where CHORALE_STRICT refuses it.
bool may_fall_back(const Call& call, const char* reason);

double seconds_now();

// Copy the elements of `side` to and from memory where they lie one after the other.
void pack(const Side& side, char* to, MPI_Comm comm);
void unpack(const char* from, const Side& side, MPI_Comm comm);

// The same on two ranks if they can share memory and do so without leaving an emulated network.
std::string network_id();

// Gathers `text` of all ranks, at most 1,023 bytes each; throws std::runtime_error after `limit_s`.
std::vector<std::string> gather_texts(MPI_Comm comm, const std::string& text, double limit_s);

// Connects `engine`, whose programs are loaded, to those of all ranks of `comm`, which call this at the same time, as
// runners/engine/library.py does: by shared memory within a network of a machine, else by TCP over `interface` (empty:
// what MPI is told to use, else what leads to the host of another rank). Throws std::runtime_error.
void meet(chorale_engine* engine, MPI_Comm comm, const std::string& interface, double limit_s);

}  // namespace chorale::job
