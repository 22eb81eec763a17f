//! The driver's types and their messages, both ways, for client and server alike.
//!
//! Towards the wire nothing can go wrong: `From`. From the wire every rule that `proto/` has for a field is
//! checked: `TryFrom` with a [`FieldError`], which is INVALID_ARGUMENT in a request and INTERNAL in a
//! response. Unknown fields and unknown enum values are never an error.
//!
//! Messages about a machine or a class are made of the same parts, which are written and read in one place.

mod capabilities;
mod field;
mod identity;
mod machine;
mod machine_extension;
mod messages;
mod page;
#[cfg(test)]
pub(super) mod tests;

pub use capabilities::Declaration;
pub use field::{FieldError, FieldProblem};
pub use page::{MachinePage, PagePlace, PageRequest, PageToken};
