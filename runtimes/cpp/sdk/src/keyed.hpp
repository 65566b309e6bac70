// Keys and their states, in the tables that the engine sends and gets back.
#pragma once

#include "wire.hpp"

namespace udo::detail {

class KeyTables {
  public:
    // The keys in a request's table KEYS, which must outlive them; `rows` is from INDEX.
    static Keys touched(const Request& request, Batch& keys);
    // The column `key` of INDEX or DUE: numbers below `count`.
    static std::vector<std::size_t> numbers(const arrow::RecordBatch& batch, std::size_t count);
    // The timers that are due.
    static Batch due(const Request& request);
    // The tables STATES and SET of an answer; `all`: including unchanged states.
    static std::vector<std::pair<Table, Batch>> changes(const Keys& keys, bool all);
};

}  // namespace udo::detail
