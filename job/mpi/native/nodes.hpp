// Communicators with several ranks per node, under a table whose ranks are nodes: programs run between nodes, and MPI's
// own collectives run inside each node, through shared memory.
#pragma once

#include <map>
#include <utility>

#include "job.hpp"

namespace chorale::job {

// LEADERS: one rank of each node runs the program for all its ranks. SLICES: all ranks run it, each rank of a node on a
// different part of the data. Nodes with different numbers of ranks only run allreduce, broadcast and reduce.
enum Way { LEADERS, SLICES, WAYS };

// Returns the node of each rank of the job; nodes are numbered in the order of their first ranks. Ranks are on the same
// node if CHORALE_NODE is equal or, without it, if they can share memory. All ranks call this at the same time.
std::vector<int> nodes_of_job(int ranks, double limit_s);

class Nodes {
  public:
    // numbers: the node of each rank of `comm`. All its ranks call this at the same time.
    Nodes(MPI_Comm comm, const std::vector<int>& numbers);
    ~Nodes();
    Nodes(const Nodes&) = delete;
    Nodes& operator=(const Nodes&) = delete;

    Decision decide(const Call& call) const;

    // Serves `call` on contiguous elements. Throws std::runtime_error.
    void run(const Entry& entry, const Call& call, const void* input, void* output);

  private:
    struct Trial {
        int calls = 0, way = -1;
        double seconds[WAYS] = {};
    };

    bool can(Way way, const Call& call) const;
    int bridge(const Call& call) const;  // local rank that runs a rooted program for its node
    void between(const Entry& entry, const Call& call, bool takes_part, size_t bytes, const void* in, void* out);
    void allreduce(const Entry& entry, const Call& call, Way way, const void* in, char* out);
    void reduce_scatter(const Entry& entry, const Call& call, Way way, const void* in, char* out);
    void allgather(const Entry& entry, const Call& call, Way way, const void* in, char* out);
    void broadcast(const Entry& entry, const Call& call, Way way, const void* in, char* out);
    void reduce(const Entry& entry, const Call& call, const void* in, char* out);
    void alltoall(const Entry& entry, const Call& call, const void* in, char* out);

    enum Order { BY_NODE, BY_LOCAL };  // by node, then local rank; or vice versa

    size_t slot(Order order, size_t rank) const;

    // Copy blocks of `bytes` from rank order to `order`, and back.
    void sort(Order order, const char* from, char* to, size_t bytes) const;
    void unsort(Order order, const char* from, char* to, size_t bytes) const;

    int nodes_ = 0, locals_ = 0;  // number of nodes, and of ranks on this node
    int node_ = 0, local_ = 0;    // node and local rank of this rank
    int fewest_ = 0;              // smallest number of ranks on a node
    bool is_even_ = true;         // whether all nodes have the same number of ranks
    std::vector<int> node_of_, local_of_;  // by rank of the communicator
    MPI_Comm inside_ = MPI_COMM_NULL, across_ = MPI_COMM_NULL;
    std::unique_ptr<Group> between_;  // the ranks with this local rank on all nodes; null if a node has no such rank
    GroupEntries entries_;
    std::map<std::pair<std::string, int>, Trial> trials_;  // by collective and power of two
};

}  // namespace chorale::job
