pub(crate) mod driver_values;
mod round_trips;
mod rules;
