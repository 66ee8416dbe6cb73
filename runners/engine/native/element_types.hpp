// Element types and the operations on them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace chorale {

size_t element_size(int type);      // 0 for an unknown type
bool is_operation(int operation);

// dst[i] = a[i] (operation) b[i]. AVG adds; call `divide` at the end. dst may equal a or b.
void reduce(int type, int operation, void* dst, const void* a, const void* b, size_t elements);

// data[i] /= divisor; integers are rounded towards zero.
void divide(int type, void* data, size_t elements, int64_t divisor);

}  // namespace chorale
