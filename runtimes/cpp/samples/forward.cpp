// Answers every event unchanged.
#include <udo/operator.hpp>

struct Forward : udo::Batches {
    udo::Batch process(const udo::Batch& batch, udo::Context&) override { return batch; }
};

int main() { return udo::run(Forward()); }
