// The size of rows: see size.hpp.
#include "size.hpp"

namespace udo::detail {

namespace {

std::int64_t none(const arrow::ArrayBuilder&) { return 0; }

template <class Builder>
std::int64_t text(const arrow::ArrayBuilder& values) {
    return static_cast<const Builder&>(values).value_data_length();
}

template <class Builder>
const arrow::ArrayBuilder& elements(const arrow::ArrayBuilder& list) {
    return *static_cast<const Builder&>(list).value_builder();
}

// The bytes of each value of this type; 0 if values differ in size, or take less than a byte.
std::uint64_t width(const arrow::DataType& type) {
    if (!arrow::is_fixed_width(type.id())) return 0;
    return static_cast<std::uint64_t>(static_cast<const arrow::FixedWidthType&>(type).bit_width()) / 8;
}

}  // namespace

Size::Size(const std::vector<std::unique_ptr<arrow::ArrayBuilder>>& columns) {
    for (const auto& column : columns) {
        if (const auto bytes = width(*column->type())) {
            fixed_ += bytes;
        } else {
            add(*column);
        }
    }
}

void Size::add(const arrow::ArrayBuilder& values) {
    const auto type = values.type();
    switch (type->id()) {
        case arrow::Type::STRING:
        case arrow::Type::BINARY: varied_.push_back({&values, 4, text<arrow::BinaryBuilder>}); return;
        case arrow::Type::LARGE_STRING:
        case arrow::Type::LARGE_BINARY: varied_.push_back({&values, 8, text<arrow::LargeBinaryBuilder>}); return;
        case arrow::Type::MAP: {
            const auto& map = static_cast<const arrow::MapBuilder&>(values);
            varied_.push_back({&values, 4, none});
            add(*map.key_builder());
            return add(*map.item_builder());
        }
        case arrow::Type::LIST: varied_.push_back({&values, 4, none}); return add(elements<arrow::ListBuilder>(values));
        case arrow::Type::LARGE_LIST: varied_.push_back({&values, 8, none}); return add(elements<arrow::LargeListBuilder>(values));
        case arrow::Type::FIXED_SIZE_LIST: return add(elements<arrow::FixedSizeListBuilder>(values));
        case arrow::Type::STRUCT:
            for (int n = 0; n < values.num_children(); n++) add(*values.child_builder(n));
            return;
        default:
            if (const auto bytes = width(*type)) varied_.push_back({&values, bytes, none});
    }
}

std::uint64_t Size::of(std::int64_t rows) const {
    auto size = fixed_ * static_cast<std::uint64_t>(rows);
    for (const auto& part : varied_) {
        size += part.each * static_cast<std::uint64_t>(part.values->length()) + static_cast<std::uint64_t>(part.more(*part.values));
    }
    return size;
}

}  // namespace udo::detail
