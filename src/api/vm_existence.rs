//! What an InfraMachine says of its VM before the driver has.

/// Whether a VM of an InfraMachine may exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VmExistence {
    /// A create was or is about to be issued: only the driver can say whether there is a VM.
    MayExist,
    /// Every create was refused for good: there is no VM. What else a create makes, such as a disk, may have
    /// been made before the refusal.
    Refused,
    /// No create has reached the driver, or it had nothing to make, because the name
    /// was taken: there is nothing.
    None,
}

impl VmExistence {
    /// The value of the annotation [`super::annotations::VM_EXISTENCE`].
    pub const fn annotation(self) -> &'static str {
        match self {
            Self::MayExist => "may-exist",
            Self::Refused => "refused",
            Self::None => "none",
        }
    }

    /// What the annotation says. An unknown value is taken for the careful answer.
    pub fn from_annotation(value: &str) -> Self {
        [Self::None, Self::Refused]
            .into_iter()
            .find(|existence| existence.annotation() == value)
            .unwrap_or(Self::MayExist)
    }
}
