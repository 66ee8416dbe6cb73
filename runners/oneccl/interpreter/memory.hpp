// Input and output of one rank for one run, what they hold before, and whether they hold the right things after.
#pragma once

#include <string>
#include <vector>

#include "task.hpp"

namespace chorale {

class Memory {
public:
    Memory(const Task& task, const Run& run);

    char* input() const { return input_; }
    char* output() const { return output_; }

    // "" if every element is right, else which is not.
    std::string complaint() const;

    // Makes the result wrong, for tests.
    void spoil();

private:
    void lay_out();

    const Task& task_;
    const Run& run_;
    size_t input_elements_, output_elements_;
    std::vector<char> bytes_;
    char *input_, *output_;
};

}  // namespace chorale
