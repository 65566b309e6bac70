// Answered events, gathered into a record batch of a bounded size.
#pragma once

#include <arrow/builder.h>

#include <udo/operator.hpp>

#include "size.hpp"

namespace udo::detail {

class Rows {
  public:
    Rows(std::shared_ptr<arrow::Schema> schema, std::uint64_t bound);
    // SchemaError says what does not fit, TooLarge that they are too many; the rows are of no use then.
    void push(std::span<const Field> row);
    // What has been pushed, of which nothing stays here.
    Batch take();

  private:
    void require_bounded() const;

    std::shared_ptr<arrow::Schema> schema_;
    std::vector<std::unique_ptr<arrow::ArrayBuilder>> columns_;
    Size size_;
    std::uint64_t bound_;
    std::int64_t count_ = 0;
};

}  // namespace udo::detail
