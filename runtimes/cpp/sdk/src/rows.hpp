// Answered events, gathered into a record batch.
#pragma once

#include <arrow/builder.h>

#include <udo/operator.hpp>

namespace udo::detail {

class Rows {
  public:
    explicit Rows(std::shared_ptr<arrow::Schema> schema);
    // SchemaError says what does not fit; the rows are of no use then.
    void push(std::span<const Field> row);
    // What has been pushed, of which nothing stays here.
    Batch take();

  private:
    std::shared_ptr<arrow::Schema> schema_;
    std::vector<std::unique_ptr<arrow::ArrayBuilder>> columns_;
    std::int64_t count_ = 0;
};

}  // namespace udo::detail
