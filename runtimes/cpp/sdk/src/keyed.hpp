// Keys and their states, as the engine sends them and gets them back.
#pragma once

#include "wire.hpp"

namespace udo::detail {

class KeyTables {
  public:
    // The keys in a request's table KEYS, which has to outlive them; their rows are those of INDEX.
    static Keys touched(const Request& request, Batch& keys);
    // The column `key` of INDEX or DUE: numbers below `count`.
    static std::vector<std::size_t> numbers(const arrow::RecordBatch& batch, std::size_t count);
    // Timers that are due.
    static Batch due(const Request& request);
    // The tables STATES and SET of an answer; `all`: also states that are as before.
    static std::vector<std::pair<Table, Batch>> changes(const Keys& keys, bool all);
};

}  // namespace udo::detail
