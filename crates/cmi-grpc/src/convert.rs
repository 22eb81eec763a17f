//! Conversions between the driver's types and their messages, for client and server.
//!
//! Writing a message cannot fail: `From`. Reading a message checks every rule that `proto/` has for a field:
//! `TryFrom` with a [`FieldError`], which is INVALID_ARGUMENT in a request and INTERNAL in a response.
//! Unknown fields and unknown enum values are never an error.
//!
//! Messages about a machine or a class share the same parts, which are written and read in one place.

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
