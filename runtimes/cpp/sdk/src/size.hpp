// The bound of an answer, given by Start, and the size of rows while they are gathered.
#pragma once

#include <arrow/builder.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace udo::detail {

// The largest possible body: its length is a 32-bit number.
constexpr std::uint64_t MOST_BODY_BYTES = UINT32_MAX;

// An answer is larger than the bound.
struct TooLarge : std::length_error {
    TooLarge(std::int64_t events, std::int64_t states, std::uint64_t bytes, std::uint64_t bound)
        : std::length_error("the answer to one frame has " + std::to_string(events) + " events" +
                            (states > 0 ? " and " + std::to_string(states) + " states" : "") + " of " + std::to_string(bytes) +
                            " bytes; the bound is " + std::to_string(bound) + ": return less per event, or send fewer events at a time") {}
};

// A lower bound of the bytes of the rows in some builders: bits and validity bitmaps are left out.
class Size {
  public:
    explicit Size(const std::vector<std::unique_ptr<arrow::ArrayBuilder>>& columns);
    std::uint64_t of(std::int64_t rows) const;

  private:
    // The values in a builder, the bytes of each, and the additional bytes of all.
    struct Part {
        const arrow::ArrayBuilder* values;
        std::uint64_t each;
        std::int64_t (*more)(const arrow::ArrayBuilder&);
    };
    void add(const arrow::ArrayBuilder& values);

    std::uint64_t fixed_ = 0;  // bytes of a row's values of fixed width
    std::vector<Part> varied_;
};

}  // namespace udo::detail
