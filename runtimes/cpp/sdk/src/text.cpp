// Text for the engine: see text.hpp.
#include "text.hpp"

#include <arrow/util/utf8.h>

#include <nlohmann/json.hpp>

namespace udo::detail {

namespace {

// Whether a byte continues a character.
bool continues(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) == 0x80; }

}  // namespace

bool is_text(std::string_view bytes) {
    [[maybe_unused]] static const bool ready = (arrow::util::InitializeUTF8(), true);
    return arrow::util::ValidateUTF8(bytes);
}

std::string told(std::string_view text, std::size_t most_bytes) {
    std::string cut(text);
    if (text.size() > most_bytes) {
        std::size_t begin = most_bytes / 2, end = text.size() - begin;
        for (int n = 0; n < 3 && continues(text[begin]); n++) begin--;
        for (int n = 0; n < 3 && continues(text[end]); n++) end++;
        cut = std::string(text.substr(0, begin)) + " … " + std::to_string(end - begin) + " bytes cut … " + std::string(text.substr(end));
    }
    if (is_text(cut)) return cut;
    using nlohmann::json;
    return json::parse(json(cut).dump(-1, ' ', false, json::error_handler_t::replace)).get<std::string>();
}

}  // namespace udo::detail
