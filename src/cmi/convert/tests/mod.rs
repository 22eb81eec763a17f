pub(in crate::cmi) mod driver_values;
mod round_trips;
mod rules;
