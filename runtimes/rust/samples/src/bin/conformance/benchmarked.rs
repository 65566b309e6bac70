//! The roles timed by `python -m benchmarks languages`.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use udo_operator::arrow_array::cast::AsArray;
use udo_operator::arrow_array::types::{ArrowPrimitiveType, Float64Type, Int64Type};
use udo_operator::arrow_array::{ArrayRef, Int64Array, PrimitiveArray, RecordBatch};
use udo_operator::{Batches, Context, Event, Events, Key, Keyed, KeyedBatches, Keys, Result, row};

const LIMIT: f64 = 500.0;

/// The state of a key, as any language may have left it: `{"n": 3}`.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
pub struct Counted {
    pub n: i64,
}

impl Counted {
    /// The state of each key.
    pub fn of(keys: &Keys) -> Result<Vec<Self>> {
        keys.iter().map(|key| Ok(key.state()?.unwrap_or_default())).collect()
    }

    pub fn keep(all: &[Self], keys: &mut Keys) -> Result {
        keys.iter_mut().zip(all).try_for_each(|(key, counted)| key.set_state(counted))
    }
}

struct Filter;

impl Batches for Filter {
    fn process(&mut self, batch: &RecordBatch, ctx: &mut Context) -> Result<RecordBatch> {
        let amounts = batch.column(2).as_primitive::<Float64Type>();
        let kept: Vec<usize> = amounts.values().iter().enumerate().filter(|(_, amount)| **amount > LIMIT).map(|(row, _)| row).collect();
        fn taken<T: ArrowPrimitiveType>(column: &ArrayRef, kept: &[usize]) -> ArrayRef {
            let values = column.as_primitive::<T>().values();
            Arc::new(PrimitiveArray::<T>::from_iter_values(kept.iter().map(|&row| values[row])))
        }
        let columns = vec![
            taken::<Int64Type>(batch.column(0), &kept),
            taken::<Int64Type>(batch.column(1), &kept),
            taken::<Float64Type>(batch.column(2), &kept),
            taken::<Int64Type>(batch.column(3), &kept),
        ];
        Ok(RecordBatch::try_new(ctx.output.clone(), columns)?)
    }
}

struct FilterEach;

impl Events for FilterEach {
    fn process(&mut self, event: Event, ctx: &mut Context) -> Result {
        let amount: f64 = event.get("amount")?;
        if amount > LIMIT {
            ctx.emit(row! {"id": event.value("id")?, "card": event.value("card")?, "amount": amount, "at": event.value("at")?})?;
        }
        Ok(())
    }
}

struct Tally;

impl Keyed for Tally {
    fn process(&mut self, event: Event, key: &mut Key, ctx: &mut Context) -> Result {
        let mut counted: Counted = key.state()?.unwrap_or_default();
        counted.n += 1;
        key.set_state(&counted)?;
        ctx.emit(row! {"id": event.value("id")?, "card": event.value("card")?, "n": counted.n})
    }
}

struct TallyBatches;

impl KeyedBatches for TallyBatches {
    fn process(&mut self, batch: &RecordBatch, keys: &mut Keys, ctx: &mut Context) -> Result<RecordBatch> {
        let mut counts = Counted::of(keys)?;
        let each = keys.rows().iter().map(|&key| {
            counts[key].n += 1;
            counts[key].n
        });
        let n: ArrayRef = Arc::new(Int64Array::from_iter_values(each));
        Counted::keep(&counts, keys)?;
        Ok(RecordBatch::try_new(ctx.output.clone(), vec![batch.column(0).clone(), batch.column(1).clone(), n])?)
    }
}

pub fn run(role: &str) -> ! {
    match role {
        "filter" => udo_operator::batches(Filter).run(),
        "filter_each" => udo_operator::events(FilterEach).run(),
        "tally" => udo_operator::keyed(Tally).run(),
        "tally_batches" => udo_operator::keyed_batches(TallyBatches).run(),
        _ => panic!("no role of the conformance operator (UDO_CONFORMANCE): {role:?}"),
    }
}
