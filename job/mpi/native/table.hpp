// A tuning table, as job/mpi/checking.py passes it on, and the choice of an entry for a call.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace chorale::job {

// root -1: none; max_bytes -1: no limit; program -1: the library's own algorithm.
struct Entry {
    std::string collective, dtype;
    bool everyone;
    std::vector<int> group;
    int root;
    int64_t min_bytes, max_bytes;
    int program;
};

struct Program {
    std::string digest;
    std::vector<std::string> packed;  // for each rank
};

struct Table {
    std::string digest;
    int ranks = 0;
    std::vector<Entry> entries;
    std::vector<Program> programs;

    // Returns the program of a rank as words for chorale_program_load.
    std::vector<int64_t> words(int program, int rank) const;
};

// Returns the digest that a table file states. Throws std::runtime_error unless the file is regular and not too large.
std::string table_digest(const std::string& path);

// Parses the output of job/mpi/checking.py, which has checked the table.
Table parse_table(const std::string& content);

// The entry whose program runs, or the reason why none does, in the same words as job/table/layout.py.
struct Decision {
    const Entry* entry;
    const char* reason;
};

// The entries for one group, as pointers into the table.
class GroupEntries {
  public:
    GroupEntries() = default;
    GroupEntries(const Table& table, const std::vector<int>& group);

    // size_bytes: size of the complete vector. An entry for this dtype has precedence over one for any.
    Decision find(std::string_view collective, int root, std::string_view dtype, int64_t size_bytes) const;

    bool has(std::string_view collective) const;

    const std::vector<const Entry*>& all() const { return entries_; }

  private:
    std::vector<const Entry*> entries_;
};

inline constexpr const char *NO_TABLE = "no table", *GROUP = "group not in the table",
                            *COLLECTIVE = "collective not in the table", *ROOT = "root not in the table",
                            *DTYPE = "element type not in the table", *SIZE = "size not in the table",
                            *LIBRARY = "the table says the library's own",
                            *OPERATION = "operation that no program supports",
                            *PENDING = "call that does not wait for its result",
                            *SHAPE = "vector that ranks do not divide into equal shards";

}  // namespace chorale::job
