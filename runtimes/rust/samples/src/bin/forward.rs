//! Answers every event unchanged.

use udo_operator::arrow_array::RecordBatch;
use udo_operator::{Batches, Context, Result};

struct Forward;

impl Batches for Forward {
    fn process(&mut self, batch: &RecordBatch, _: &mut Context) -> Result<RecordBatch> {
        Ok(batch.clone())
    }
}

fn main() {
    udo_operator::batches(Forward).run()
}
