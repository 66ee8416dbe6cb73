// A process of an MPI job: its settings, table and counts, its element types, and its groups of ranks.
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

// An element type. name: in tables, null if programs do not support it; type: number in the engine; only_sums: true for
// complex numbers
struct Element {
    const char* name;
    int type;
    bool only_sums = false;
};

Element element_of(MPI_Datatype type);

// Returns the number of the operation in the engine, -1 if programs do not support it.
int operation_of(MPI_Op operation, const Element& element);

// Returns the name of the element type that `type` consists of. It depends only on the signature, so that ranks with
// different layouts agree. "mixed": several element types; "other": one without a name in tables; null: no bytes.
const char* signature_of(MPI_Datatype type);

// Whether the elements are contiguous.
bool is_dense(MPI_Datatype type);

size_t size_of(MPI_Datatype type);

// The properties of a call that are the same on all ranks. Only they decide what serves it.
struct Call {
    const char* collective;
    MPI_Comm comm;
    int root;            // -1: none
    size_t size_bytes;   // size of the complete vector
    const char* dtype;   // name of the element type in tables
    int type, operation; // numbers in the engine
    const char* unfit;   // reason why no program can serve it; null if one can
    size_t count = 0;    // for reductions: elements of `mpi_type`
    MPI_Datatype mpi_type = MPI_DATATYPE_NULL;
    MPI_Op mpi_operation = MPI_OP_NULL;
};

// Elements in the caller's memory; none if `at` is null.
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
    Group(MPI_Comm comm, std::vector<int> table_ranks);  // table_ranks: for each rank, its rank in the table
    ~Group();
    Group(const Group&) = delete;
    Group& operator=(const Group&) = delete;

    int ranks() const { return int(members_.size()); }
    int rank() const { return rank_; }
    const std::string& json() const { return json_; }  // ranks in MPI_COMM_WORLD; null: all

    // Collective: all ranks call it at the same time, for the same call.
    Decision decide(const Call& call);

    // Runs the entry's program on contiguous elements. Throws std::runtime_error.
    void run(const Entry& entry, const Call& call, const void* input, void* output);

    // Whether the table may have a program for these ranks and `collective`; the result is the same on all ranks.
    bool has(std::string_view collective) const;

    // Whether this is an intercommunicator.
    bool is_inter() const { return members_.empty() || members_.front() < 0; }

    // Runs the entry's program; all ranks call this. Returns an MPI error code; prints a message if it fails.
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
    std::vector<int64_t> numbers_;  // number of a program in the table -> number in the engine
    std::string broken_;            // reason why the engine can no longer be used
};

struct Settings {
    std::string table, report, record, interface;
    std::string within_nodes = "measure";  // or leaders or slices
    bool strict = false;
    double limit_s = 1800;
};

struct Job {
    Settings settings;
    Table table;
    Counts counts;
    int rank = 0, ranks = 0;
    std::vector<int> nodes;  // node of each rank; set if the table's number of ranks differs from the job's
    std::string other_ranks;  // why the table's ranks fit neither the job's ranks nor its nodes; else empty

    bool has_table() const { return !settings.table.empty(); }
    bool records() const { return !settings.record.empty(); }
};

// The job, null before MPI_Init and after MPI_Finalize.
Job* job();

// Reads the environment and checks that all ranks have the same table; aborts the job if that fails.
void begin();

// Writes the report and the record.
void end();

// Ends the process, after a message, if the program uses another MPI than the one that this library is built for:
// handles differ, so no call could be passed on.
void require_own_mpi();

// With CHORALE_STRICT, ends the process, after a message, if MPI was started in a way that cannot be intercepted.
void require_a_world();

// Returns the group of `comm`, null outside of a job.
Group* group_of(MPI_Comm comm);

// Prints an error message and calls the communicator's error handler; returns `code` if the handler returns.
int fail(const Call& call, const std::string& message, int code);

// Like `fail`, for a call that CHORALE_STRICT refuses; creates an MPI error class with this text.
int refuse(const Call& call, const char* reason);

// Counts a call that the library serves; returns false if CHORALE_STRICT refuses it.
bool may_fall_back(const Call& call, const char* reason);

double seconds_now();

enum Direction { PACK, UNPACK };

// Copies the elements of `side` to contiguous memory (PACK) or from there (UNPACK).
void copy(Direction direction, const Side& side, char* bytes, MPI_Comm comm);

// Returns a text that is equal on two ranks if they can share memory and are in the same network namespace.
std::string network_id();

// Gathers `text` of all ranks, at most 1,023 bytes each; throws std::runtime_error after `limit_s`.
std::vector<std::string> gather_texts(MPI_Comm comm, const std::string& text, double limit_s);

// Connects `engine`, whose programs are loaded, to the engines of all ranks of `comm`, which call this at the same
// time. As in runners/engine/library.py, ranks in the same network namespace of a machine use shared memory, others TCP
// over `interface` (empty: the device that MPI is told to use, else the one that leads to the host of another rank).
// Throws std::runtime_error.
void meet(chorale_engine* engine, MPI_Comm comm, const std::string& interface, double limit_s);

}  // namespace chorale::job
