//! The purpose of a permit, and which purpose comes first.

/// The purpose of a permit. Look-ups and deletions come before creates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// Anything but creating a VM. May use every permit.
    Upkeep,
    /// Creating a VM, or finishing it. Leaves a reserve, so that creates that hang hold up no deletion.
    Create,
}

/// One value for each priority.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PerPriority<T> {
    pub(super) upkeep: T,
    pub(super) create: T,
}

impl Priority {
    /// Both priorities, in the order in which they are served.
    pub(super) const ALL: [Self; 2] = [Self::Upkeep, Self::Create];

    /// The value of the metrics label.
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
