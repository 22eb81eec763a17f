//! What a permit is for, and which purpose comes first.

/// What a permit is wanted for. Look-ups and deletions come before creates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// Anything but to make a VM. May use every permit.
    Upkeep,
    /// To make a VM, or to finish it. Leaves a reserve, so that creates that hang hold no deletion up.
    Create,
}

/// One for each priority.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PerPriority<T> {
    pub(super) upkeep: T,
    pub(super) create: T,
}

impl Priority {
    /// Both, in the order in which they are served.
    pub(super) const ALL: [Self; 2] = [Self::Upkeep, Self::Create];

    /// The label of metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Upkeep => "upkeep",
            Self::Create => "create",
        }
    }
}

impl<T> PerPriority<T> {
    pub(super) fn of(&self, priority: Priority) -> &T {
        match priority {
            Priority::Upkeep => &self.upkeep,
            Priority::Create => &self.create,
        }
    }

    pub(super) fn of_mut(&mut self, priority: Priority) -> &mut T {
        match priority {
            Priority::Upkeep => &mut self.upkeep,
            Priority::Create => &mut self.create,
        }
    }
}

impl PerPriority<u32> {
    pub(super) fn sum(self) -> u32 {
        self.upkeep + self.create
    }
}
