// Roles of the conformance operator for tests of this SDK alone: faults of operators in C++ (tests/operators/test_cpp.py).
#include <sys/wait.h>
#include <unistd.h>

#include <future>
#include <iostream>

#include "conformance.hpp"

// Event by event: do: string, n: int64 -> text: string.
struct Faulty : udo::Events {
    void process(const udo::Event& event, udo::Context& ctx) override {
        const auto what = event.get<std::string_view>("do");
        const auto n = static_cast<std::size_t>(event.get<std::int64_t>("n"));
        if (what == "raise") throw std::runtime_error("raised");
        if (what == "raise elsewhere") std::async(std::launch::async, [] { throw std::runtime_error("raised elsewhere"); }).get();
        const auto many = [n](const std::string& each) {
            std::string all = "begins ";
            for (std::size_t had = 0; had < n; had++) all += each;
            return all + " ends";
        };
        if (what == "raise long") throw std::runtime_error(many("é"));
        if (what == "raise bytes") throw std::runtime_error("caf\xe9 au lait");
        if (what == "log long") ctx.log.info(many("é"));
        if (what == "log bytes") ctx.log.info("caf\xe9 au lait");
        if (what == "answer bytes") return ctx.emit({{"text", many("\xe9")}});
        if (what == "catch") {
            try {
                ctx.emit({{"text", 7}});
            } catch (const udo::SchemaError&) {
                return ctx.emit({{"text", "caught"}});
            }
        }
        if (what.starts_with("fork")) {
            const pid_t child = fork();
            if (child == 0) {
                ctx.log.info("in the child");
                if (what == "fork and raise") throw std::runtime_error("raised in the child");
                return;
            }
            int status = 0;
            waitpid(child, &status, 0);
            return ctx.emit({{"text", "the child ended with " + std::to_string(WEXITSTATUS(status))}});
        }
        ctx.emit({{"text", what}});
    }
};

// Answers with batches that do not fit the output schema (a: int64, b: string), chosen by the name of the first input column.
struct Misfits : udo::Batches {
    udo::Batch process(const udo::Batch& batch, udo::Context& ctx) override {
        const auto rows = batch->num_rows();
        const auto& what = batch->schema()->field(0)->name();
        const auto ints = udo::check(arrow::MakeArrayOfNull(arrow::int64(), rows));
        const auto texts = udo::check(arrow::MakeArrayOfNull(arrow::utf8(), rows));
        if (what == "fewer") return arrow::RecordBatch::Make(ctx.output, rows, {ints});
        if (what == "more") return arrow::RecordBatch::Make(ctx.output, rows, {ints, texts, texts});
        if (what == "another type") return arrow::RecordBatch::Make(ctx.output, rows, {texts, texts});
        if (what == "another length") return arrow::RecordBatch::Make(ctx.output, rows, {ints, texts->Slice(1)});
        if (what == "another name") {
            return arrow::RecordBatch::Make(arrow::schema({ctx.output->field(0), arrow::field("c", arrow::utf8())}), rows, {ints, texts});
        }
        return arrow::RecordBatch::Make(ctx.output, rows, {ints, texts});
    }
};

int faulty(std::string_view role) {
    if (role == "faulty") return udo::run(Faulty());
    if (role == "misfits") return udo::run(Misfits());
    return -1;
}
