// Answered events, gathered into a record batch of a bounded size.
#pragma once

#include <arrow/builder.h>

#include <udo/operator.hpp>

#include "size.hpp"

namespace udo::detail {

class Rows {
  public:
    Rows(std::shared_ptr<arrow::Schema> schema, std::uint64_t bound);
    // Adds a row. SchemaError, and no row, if it does not fit; TooLarge if there are too many, and then take() does not return them either.
    void push(std::span<const Field> row);
    // Returns the rows as a batch, and removes them.
    Batch take();

  private:
    void append(std::size_t column, std::span<const Field> row);
    void drop_last();
    void require_bounded() const;

    std::shared_ptr<arrow::Schema> schema_;
    std::vector<std::unique_ptr<arrow::ArrayBuilder>> columns_;
    Size size_;
    std::uint64_t bound_;
    std::int64_t count_ = 0;  // with dropped rows
    std::vector<std::int64_t> dropped_;
};

}  // namespace udo::detail
