//! How often the VM was restarted, and when. The record is written before the call, so that no crash leads to
//! an additional restart. It is in the metadata, so that `clusterctl move` moves it. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::api::annotations;

/// The restarts that the driver was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// The number of restarts.
    pub count: u32,
    /// When the driver was last asked.
    pub issued_at: Option<Timestamp>,
}

impl Record {
    /// Parses the annotations. A malformed count becomes the largest count, so that no further restart is
    /// made. A malformed time counts as none.
    pub fn of(annotations: Option<&BTreeMap<String, String>>) -> Self {
        let value = |key: &str| annotations.and_then(|all| all.get(key));
        Self {
            count: value(annotations::RESTARTS).map_or(0, |count| count.parse().unwrap_or(u32::MAX)),
            issued_at: value(annotations::RESTART_ISSUED_AT).and_then(|time| time.parse().ok()),
        }
    }

    /// The record with one more restart.
    pub fn and_one_at(self, now: Timestamp) -> Self {
        Self {
            count: self.count.saturating_add(1),
            issued_at: Some(now),
        }
    }

    /// The annotations of the record, as a merge patch.
    pub fn annotations(self) -> Value {
        let count = (self.count > 0).then(|| self.count.to_string());
        json!({
            annotations::RESTARTS: count,
            annotations::RESTART_ISSUED_AT: self.issued_at.map(|time| time.to_string()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(annotations: &Value) -> Record {
        let fields = annotations.as_object().unwrap().iter();
        let given = fields.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
        Record::of(Some(&given.collect()))
    }

    #[test]
    fn a_record_is_read_back_as_it_was_written() {
        let none = Record::default();
        assert_eq!(Record::of(None), none);
        assert_eq!(read(&none.annotations()), none);
        let one = none.and_one_at(Timestamp::from_second(7).unwrap());
        assert_eq!(read(&one.annotations()), one);
    }

    #[test]
    fn a_count_that_cannot_be_read_lets_nothing_be_restarted_again() {
        assert_eq!(read(&json!({annotations::RESTARTS: "many"})).count, u32::MAX);
    }
}
