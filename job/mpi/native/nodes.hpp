// Communicators with several ranks on each node, under a table whose ranks are nodes: programs run between nodes, and
// MPI's own collectives, by shared memory, inside of each.
#pragma once

#include <map>
#include <utility>

#include "job.hpp"

namespace chorale::job {

// LEADERS: one rank of each node runs the program, for all of them. SLICES: all ranks run it, the ranks of a node on
// different parts of the data.
enum Way { LEADERS, SLICES, WAYS };

// Returns the node of each rank of the job, numbered in the order of their first ranks: ranks are on one node if they
// can share memory, or if CHORALE_NODE is the same text there. All ranks call it at the same time.
std::vector<int> nodes_of_job(int ranks, double limit_s);

class Nodes {
  public:
    // numbers: the node of each rank of `comm`. All its ranks call it at the same time.
    Nodes(MPI_Comm comm, const std::vector<int>& numbers);
    ~Nodes();
    Nodes(const Nodes&) = delete;
    Nodes& operator=(const Nodes&) = delete;

    Decision decide(const Call& call) const;

    // Serves `call` from and to elements that lie side by side. Throws std::runtime_error.
    void run(const Entry& entry, const Call& call, const void* input, void* output);

  private:
    struct Trial {
        int calls = 0, way = -1;
        double seconds[WAYS] = {};
    };

    bool can(Way way, const Call& call) const;
    void between(const Entry& entry, const Call& call, bool takes_part, size_t bytes, const void* in, void* out);
    void allreduce(const Entry& entry, const Call& call, Way way, const void* in, char* out);
    void reduce_scatter(const Entry& entry, const Call& call, Way way, const void* in, char* out);
    void allgather(const Entry& entry, const Call& call, Way way, const void* in, char* out);
    void broadcast(const Entry& entry, const Call& call, Way way, const void* in, char* out);
    void reduce(const Entry& entry, const Call& call, const void* in, char* out);
    void alltoall(const Entry& entry, const Call& call, const void* in, char* out);

    enum Order { BY_NODE, BY_LOCAL };  // nodes, then ranks on each; or local numbers, then nodes

    size_t slot(Order order, size_t rank) const;

    // Move blocks of `bytes` from the order of ranks to `order`, and back.
    void sort(Order order, const char* from, char* to, size_t bytes) const;
    void unsort(Order order, const char* from, char* to, size_t bytes) const;

    int nodes_ = 0, locals_ = 0;  // locals_: ranks on this node
    int node_ = 0, local_ = 0;    // of this rank
    bool is_even_ = true;         // whether all nodes have as many ranks
    std::vector<int> node_of_, local_of_;  // by rank of the communicator
    MPI_Comm inside_ = MPI_COMM_NULL, across_ = MPI_COMM_NULL;
    std::unique_ptr<Group> between_;  // the ranks of all nodes with this local number; null if not all nodes have it
    GroupEntries entries_;
    std::map<std::pair<std::string, int>, Trial> trials_;  // by collective and power of two
};

}  // namespace chorale::job
