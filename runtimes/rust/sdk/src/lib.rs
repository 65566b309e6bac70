//! The Rust SDK for operators of udo-spark: a type implements one of these traits, and `main` passes it to the function beside the trait.
//!
//! | trait | function | |
//! |---|---|---|
//! | [`Batches`] | [`batches`] | vectorised |
//! | [`Events`] | [`events`] | event by event |
//! | [`Keyed`] | [`keyed`] | event by event, with the state of the event's key |
//! | [`KeyedBatches`] | [`keyed_batches`] | the same, vectorised |
//!
//! Timers and migration are separate traits: `keyed(Visits).timed().migrating().run()`. An error or a panic fails the method's frame
//! with a backtrace; the process goes on. `udo logs` shows the output of `log::info!` and the other log macros.
//!
//! ```no_run
//! use udo_operator::{Context, Event, Events, Result, row};
//!
//! struct Fraud;
//!
//! impl Events for Fraud {
//!     fn process(&mut self, event: Event, ctx: &mut Context) -> Result {
//!         ctx.emit(row! {"id": event.value("id")?, "flagged": event.get::<f64>("value")? > 100.0})
//!     }
//! }
//!
//! fn main() {
//!     udo_operator::events(Fraud).run()
//! }
//! ```

mod context;
mod cut;
mod error;
mod event;
mod keyed;
mod operator;
#[path = "udo.operator.v1.rs"] // made by `make proto`
#[rustfmt::skip]
#[allow(dead_code)]
mod pb;
mod rows;
mod serve;
mod shared;
mod size;
mod state;
mod value;
mod wire;

pub use arrow_array;
pub use arrow_schema;
pub use chrono;
pub use log;

pub use context::Context;
pub use error::{Error, Result};
pub use event::{Event, FromColumn};
pub use keyed::{Key, Keys};
pub use operator::{Batches, Events, Keyed, KeyedBatches, Migrating, Operator, Timed, batches, events, keyed, keyed_batches};
pub use state::{State, pack, unpack};
pub use value::{Date, Decimal, LocalTime, Timestamp, Value};
